/* The daemon's settings: the key table (config_keys.def) read into a plain struct. */
#ifndef RK_CONFIG_INTERNAL_H
#define RK_CONFIG_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config/rk_config.h"
#include "base/rk_log.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "daemon/guard/listen.h"

struct rk_settings {
    /* fixed after start */
    struct rk_listen listen;
    struct rk_listen health, metrics;                /* key NULL: none */
    bool is_insecure, is_dry_run, asks_certificates; /* of every client */
    bool has_reflection;
    int64_t max_inflight_bytes, chunk_bytes;
    char *device;
    char *plugin; /* NULL: the installed one */
    int32_t num_threads, slot;
    char *state_dir;   /* NULL: the epoch is forgotten at exit */
    char *flight_dir;  /* NULL: no file is written when the daemon fails */
    char *runtime_dir; /* $RUNTIME_DIRECTORY; NULL outside a service manager */
    int64_t collective_timeout_ms, idle_progress_ms, engine_grace_ms, comm_progress_timeout_ms;
    char *comm_listen;
    bool has_comm_tls;
    char *record_dir;             /* NULL: nothing is recorded */
    char **ckpt_roots;            /* NULL-terminated */
    uint64_t device_memory_bytes; /* 0: no limit */
    /* reloadable */
    char *token_file;                  /* NULL: no tokens */
    char *tls_cert, *tls_key, *tls_ca; /* NULL: no TLS; without tls_ca clients need no certificate */
    int64_t lease_ttl_ms, lease_grace_ms, drain_grace_ms;
    rk_log_level_t log_level;
    rk_log_format_t log_format;
};

/* All problems, one line each, instead of only the first error. */
struct rk_problems {
    struct rk_str text;
    rk_code_t code; /* UNAVAILABLE while all problems may be temporary, else INVALID_ARGUMENT */
};

/* Adds a line, after `origin` where that is not NULL. Takes `st`, which may be NULL. */
void rk_problems_add(struct rk_problems *problems, const char *origin, struct rk_status *st);
/* All problems as one error; NULL when there are none. Frees them. */
struct rk_status *rk_problems_finish(struct rk_problems *problems) RK_NODISCARD;

/* Reads the settings and checks combinations of keys. `out` is valid for fini on failure too. */
struct rk_status *rk_settings_init(struct rk_settings *out, const struct rk_config *config) RK_NODISCARD;
void rk_settings_fini(struct rk_settings *settings);
/* Logs the directories of ckpt.roots that do not exist. */
void rk_settings_warn_roots(const struct rk_settings *settings);
/* Warns if every local user has all rights. */
void rk_settings_warn_open(const struct rk_settings *settings);
/* Under a service manager a daemon without rpc.token_file that only this host can reach makes a token itself,
 * in its runtime directory. */
bool rk_settings_generates_token(const struct rk_settings *settings);
/* Copies the reloadable values of `config`. */
void rk_settings_reload(struct rk_settings *settings, const struct rk_config *config);

#endif
