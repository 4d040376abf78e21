/* daemon: one rankd process, from its configuration to its exit.
 *
 * The process is main.c around rk_daemon_run. Everything else of the module is private. */
#ifndef RK_DAEMON_H
#define RK_DAEMON_H

#include <stdint.h>

#include "base/config/rk_config.h"
#include "base/rk_status.h"
#include "base/rk_str.h"

RK_BEGIN_DECLS

#define RK_DAEMON_CONFIG_FILE "/etc/rankd/rankd.json"

/* Borrowed for the duration of the call. */
struct rk_daemon_args {
    const char *config_file;      /* NULL: RK_DAEMON_CONFIG_FILE when it exists */
    const char *const *overrides; /* "rpc.listen=127.0.0.1:0" */
    int64_t num_overrides;
    void *user;
    /* Called when the daemon can be reached at `address`, then once for each other listener that the
     * configuration asks for, with its key ("health.listen"); `key` is NULL the first time. */
    void (*on_listening)(void *user, const char *key, const char *address);
    /* SIGUSR1 came: the daemon outlives the process that started it, and stops when its grace period is over.
     * NULL: not called. */
    void (*on_detached)(void *user);
};

/* The resolved configuration, for --check-config; rk_daemon_run starts from the same. */
struct rk_status *rk_daemon_config_load(struct rk_config **out,
                                        const struct rk_daemon_args *args) RK_NODISCARD;
/* Whether a daemon could start with it now: tokens, directories, address and plug-in, all problems at once.
 * The device is not opened, and an address in use is accepted: its owner may be the daemon with this
 * configuration. INVALID_ARGUMENT, or UNAVAILABLE when all problems may be temporary. */
struct rk_status *rk_daemon_config_check(const struct rk_config *config) RK_NODISCARD;
/* The key table; as text, for --help. */
const struct rk_config_key *rk_daemon_config_keys(int64_t *count);
void rk_daemon_config_format_keys(struct rk_str *out);
/* Serves until a signal or a Shutdown call ends it. Main thread, once per process: it handles the signals. */
struct rk_status *rk_daemon_run(const struct rk_daemon_args *args) RK_NODISCARD;
/* 0 clean, 1 failed (also temporary errors such as an address without interface), 2 configuration (also:
 * a device that this machine or build does not have, a broken file in state.dir), 4 address, lock or device
 * held by another process. */
int rk_daemon_exit_code(const struct rk_status *st);

RK_END_DECLS

#endif
