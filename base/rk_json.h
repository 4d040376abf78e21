/* JSON values (over jansson, which no other file includes) and typed reads that name the path of an invalid
 * key.
 *
 * Parsing refuses duplicate keys, nesting deeper than 32 and trailing text. Values form trees; a container
 * owns its members. Functions that take a value to put into a container steal it, on failure too. */
#ifndef RK_JSON_H
#define RK_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

#define RK_JSON_MAX_DEPTH 32 /* of brackets in a text */

struct rk_json;

typedef enum rk_json_type {
    RK_JSON_NULL,
    RK_JSON_BOOL,
    RK_JSON_INT,
    RK_JSON_REAL,
    RK_JSON_STRING,
    RK_JSON_ARRAY,
    RK_JSON_OBJECT
} rk_json_type_t;

/* --- text <-> values. `source` names the text in messages ("job.json", "option actor.optim"), which have the
 * line, the column and the member: "job.json:3:7: data.seed: occurs twice". NULL: messages have the member
 * only.
 * --- */
enum rk_json_parse_flags {
    RK_JSON_ALLOW_NUL = 1u << 0,       /* "\u0000" in strings: text of users */
    RK_JSON_BIG_INT_AS_REAL = 1u << 1, /* tokenizer_config.json holds integers beyond 64 bits */
    RK_JSON_NAN_AS_NULL = 1u << 2,     /* Python's json.dumps writes NaN for a missing number */
};
struct rk_status *rk_json_parse(struct rk_json **out, const char *text, size_t bytes, const char *source,
                                uint32_t flags) RK_NODISCARD;
/* NOT_FOUND when the file is missing, RESOURCE_EXHAUSTED when it is larger than max_bytes. */
struct rk_status *rk_json_parse_file(struct rk_json **out, const char *path, size_t max_bytes,
                                     uint32_t flags) RK_NODISCARD;
/* Compact, or indented by `indent` spaces when > 0. Reals have the fewest digits that read back the same, and
 * stay reals ("1.0"). rk_free it. */
char *rk_json_dump(const struct rk_json *json, int indent, bool sort_keys);
/* Line (1-based) of the member named by the dotted path in `text`; 0 when it is absent. Array
 * elements are numbers: "a.3.b". A key with a dot is written with the dot. */
int rk_json_find_line(const char *text, size_t bytes, const char *path);

void rk_json_free(struct rk_json *json); /* drops one reference; NULL is a no-op */
struct rk_json *rk_json_retain(const struct rk_json *json);
struct rk_json *rk_json_clone(const struct rk_json *json); /* deep; NULL for NULL */
/* Deep equality; 1 and 1.0 differ, NaN cannot occur. */
bool rk_json_equal(const struct rk_json *a, const struct rk_json *b);
rk_json_type_t rk_json_type(const struct rk_json *json);
const char *rk_json_type_name(rk_json_type_t type); /* "an integer", "an object", ... for messages */

/* --- making values --- */
struct rk_json *rk_json_new_null(void);
struct rk_json *rk_json_new_bool(bool value);
struct rk_json *rk_json_new_int(int64_t value);
struct rk_json *rk_json_new_real(double value); /* asserts that it is finite */
/* Text that is not valid UTF-8 becomes null. */
struct rk_json *rk_json_new_string(const char *text);
struct rk_json *rk_json_new_string_bytes(const char *text, size_t bytes);
struct rk_json *rk_json_new_array(void);
struct rk_json *rk_json_new_object(void);
void rk_json_set(struct rk_json *object, const char *key, struct rk_json *value); /* steals value */
void rk_json_set_path(struct rk_json *object, const char *path,
                      struct rk_json *value);                      /* makes parents; steals */
void rk_json_remove(struct rk_json *object, const char *key);      /* no-op when absent */
void rk_json_append(struct rk_json *array, struct rk_json *value); /* steals value */

/* --- access. Borrowed results, NULL when absent or of another type. --- */
struct rk_json *rk_json_find(const struct rk_json *object, const char *key);
struct rk_json *rk_json_find_path(const struct rk_json *object, const char *dotted_path);
struct rk_json *rk_json_at(const struct rk_json *array, int64_t i);
int64_t rk_json_count(const struct rk_json *container); /* members or elements; 0 for scalars and NULL */
bool rk_json_is_null(const struct rk_json *json);       /* null or NULL */
bool rk_json_as_bool(const struct rk_json *json, bool fallback);
int64_t rk_json_as_int(const struct rk_json *json, int64_t fallback);
double rk_json_as_real(const struct rk_json *json, double fallback); /* integers too */
const char *rk_json_as_string(const struct rk_json *json, const char *fallback);
size_t rk_json_string_bytes(const struct rk_json *json); /* length, NULs included */

/* for (it = rk_json_iter(obj); it; it = rk_json_iter_next(obj, it)) in insertion order. */
void *rk_json_iter(const struct rk_json *object);
void *rk_json_iter_next(const struct rk_json *object, void *iter);
const char *rk_json_iter_key(void *iter);
struct rk_json *rk_json_iter_value(void *iter);

/* --- typed reads for configuration and requests. `where` is the path of `object` ("" at the root); an
 * invalid key gives INVALID_ARGUMENT "where.key: expected ..., got ...". The _opt forms leave *out unchanged
 * when the key is absent or null. Numbers are read as integers only when they are integral (1e3 and 4.0 are
 * accepted). --- */
struct rk_status *rk_json_get_bool(const struct rk_json *object, const char *where, const char *key,
                                   bool *out) RK_NODISCARD;
struct rk_status *rk_json_get_i64(const struct rk_json *object, const char *where, const char *key,
                                  int64_t min, int64_t max, int64_t *out) RK_NODISCARD;
struct rk_status *rk_json_get_f64(const struct rk_json *object, const char *where, const char *key,
                                  double *out) RK_NODISCARD;
struct rk_status *rk_json_get_string(const struct rk_json *object, const char *where, const char *key,
                                     const char **out) RK_NODISCARD;
struct rk_status *rk_json_opt_bool(const struct rk_json *object, const char *where, const char *key,
                                   bool *out) RK_NODISCARD;
struct rk_status *rk_json_opt_i64(const struct rk_json *object, const char *where, const char *key,
                                  int64_t min, int64_t max, int64_t *out) RK_NODISCARD;
struct rk_status *rk_json_opt_f64(const struct rk_json *object, const char *where, const char *key,
                                  double *out) RK_NODISCARD;
struct rk_status *rk_json_opt_string(const struct rk_json *object, const char *where, const char *key,
                                     const char **out) RK_NODISCARD;

/* --- for messages --- */
/* A value for a message: scalars as JSON, cut to a few words; "an array", "an object". rk_free it. */
char *rk_json_describe(const struct rk_json *json);
/* "where.key", or "key" at the root; rk_free it. */
char *rk_json_join_path(const char *where, const char *key);

RK_END_DECLS

#endif
