/* Configuration from key tables: one row per key, from which validation, defaults, --help and docs derive.
 *
 * Sources in rising precedence: the table's default, the file, the environment, flags ("a.b.c=VALUE"). The
 * file is strict JSON with the reserved members __nest__, __select__, __inherit__, __override__, __delete__
 * and "//" comments, and "${a.b}" / "${a.b:default}" / "${env:NAME}" references (docs/config.md). All
 * problems of a load are collected and reported together, one line each: "job.json:14: rpc.max_inflight:
 * expected ..., got ...". */
#ifndef RK_CONFIG_H
#define RK_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"
#include "base/rk_str.h"

RK_BEGIN_DECLS

typedef enum rk_config_type {
    RK_CONFIG_BOOL,
    RK_CONFIG_INT,
    RK_CONFIG_REAL,
    RK_CONFIG_STRING,
    RK_CONFIG_BYTES,    /* string with a unit ("8GiB"); read as an integer of bytes */
    RK_CONFIG_DURATION, /* string with a unit ("30s"); read as an integer of milliseconds */
    RK_CONFIG_LIST,     /* array of anything */
    RK_CONFIG_OPEN      /* object whose members are not in the table (engine_kwargs) */
} rk_config_type_t;

enum rk_config_flags {
    RK_CONFIG_REQUIRED = 1u << 0,      /* no default; missing is an error */
    RK_CONFIG_NULLABLE = 1u << 1,      /* null is a value ("off", "derive it") */
    RK_CONFIG_RELOADABLE = 1u << 2,    /* SIGHUP applies a new value */
    RK_CONFIG_ABOVE_MIN = 1u << 3,     /* min itself is out of range */
    RK_CONFIG_ONE_OR_LIST = 1u << 4,   /* LIST: a string is accepted as a list of one */
    RK_CONFIG_NUMBER_AS_TEXT = 1u << 5 /* STRING: a number is accepted as its text */
};

struct rk_config_key {
    const char *path; /* "actor_rollout_ref.actor.optim.lr" */
    rk_config_type_t type;
    const char *default_text; /* JSON; NULL with RK_CONFIG_REQUIRED, else "null" needs RK_CONFIG_NULLABLE */
    double min, max;          /* numbers, bytes and milliseconds; no check when both are 0 */
    const char *choices;      /* strings: "a|b|c", or NULL */
    uint32_t flags;
    const char *help; /* one line */
};

/* A key of another product that users may have in their files. With `to`, its value goes to that key of the
 * table. The first row that matches path and value is used. */
typedef enum rk_config_foreign_kind {
    RK_CONFIG_FOREIGN_SAME,    /* rankd always does this, or `to` has the value */
    RK_CONFIG_FOREIGN_IGNORED, /* a warning, without effect */
    RK_CONFIG_FOREIGN_REFUSED  /* an error */
} rk_config_foreign_kind_t;

struct rk_config_foreign {
    const char *path; /* '*' matches anything except keys of the table */
    rk_config_foreign_kind_t kind;
    const char *values; /* "false|null|1.0|[]": strings without quotes, else JSON; "*": any */
    /* Where the value goes; NULL: nowhere. "a.b": to this key. "a.b=JSON": the key gets this value, unless it
     * is given. "a.*", with path "b.*": b.NAME goes to a.NAME, and the rows for a.NAME apply. "a#.b", with
     * path "c.*.d": # is "" for the first name that '*' stands for, "_2" for the second, ... */
    const char *to;
    const char *text; /* one line: the effect; REFUSED: what to use instead */
};

/* Defaults of another product that differ from the table's: they replace them if the file or command line has
 * that product's form. Earlier presets precede later ones. */
struct rk_config_preset {
    const char *when;   /* "a|b": one of these members is at the top; "a.b=x|y": that key has one of these
                         * values; NULL: always */
    const char *unless; /* not with this member at the top; or NULL */
    const char *text;   /* JSON object in the other product's terms */
    const char *name;   /* origin of the values */
};

struct rk_config_source {
    const struct rk_config_key *keys;
    int64_t num_keys;
    const struct rk_config_foreign *foreign;
    int64_t num_foreign;
    const struct rk_config_preset *presets;
    int64_t num_presets;
    /* Optional: called for every row that is applied to a given key; NULL: warnings are logged instead.
     * `to` is the key that got the value, or NULL. */
    void (*on_foreign)(void *user, const struct rk_config_foreign *row, const char *path,
                       const struct rk_json *value, const char *to);
    void *user;
    const char *file; /* path or NULL */
    const char *text; /* instead of a file: JSON text named `text_name` */
    const char *text_name;
    const char *env_prefix; /* "RANKD": a.b -> RANKD_A_B; NULL reads no environment. Others are refused */
    const char *const *env_known; /* names with the prefix that are not keys; NULL-terminated, or NULL */
    const char *const
        *overrides; /* "a.b=VALUE": JSON, or as in Hydra; "+a.b=" and "++a.b=" add, "~a.b" deletes */
    int64_t num_overrides;
};

struct rk_config;

/* INVALID_ARGUMENT with all problems, one per line; NOT_FOUND when the file is missing. */
struct rk_status *rk_config_load(struct rk_config **out, const struct rk_config_source *source) RK_NODISCARD;
void rk_config_destroy(struct rk_config *config); /* NULL is a no-op */

/* Typed reads. The path must be a row of the table of that type (asserted). */
bool rk_config_bool(const struct rk_config *config, const char *path);
int64_t rk_config_int(const struct rk_config *config, const char *path); /* INT, BYTES, DURATION (ms) */
double rk_config_real(const struct rk_config *config, const char *path);
const char *rk_config_string(const struct rk_config *config, const char *path); /* NULL when null */
const struct rk_json *rk_config_json(const struct rk_config *config, const char *path);
bool rk_config_is_null(const struct rk_config *config, const char *path);
/* Whether the value equals the table's default, set or not: a file that lists all keys changes nothing. */
bool rk_config_is_default(const struct rk_config *config, const char *path);
/* "job.json:14", "env RANKD_DEVICE", "flag" or "default". */
const char *rk_config_origin(const struct rk_config *config, const char *path);
/* The whole resolved tree. */
const struct rk_json *rk_config_tree(const struct rk_config *config);
/* One line per key: path = value (origin), for --check-config and `config show`. */
void rk_config_format(const struct rk_config *config, struct rk_str *out);
const char *rk_config_type_name(rk_config_type_t type); /* "duration" */
/* A line with type, default and help of a key, for --help; of all keys of a table. */
void rk_config_format_key(const struct rk_config_key *key, struct rk_str *out);
void rk_config_format_keys(const struct rk_config_key *keys, int64_t num_keys, struct rk_str *out);

RK_END_DECLS

#endif
