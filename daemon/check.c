/* Checks of --check-config besides the configuration: everything that could make a start fail, except the
 * device itself, and without hindering a daemon that runs with the same configuration. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/net/rk_secret.h"
#include "daemon/auth_internal.h"
#include "daemon/config_internal.h"
#include "daemon/lock_internal.h"
#include "daemon/rk_daemon.h"
#include "daemon/tls_internal.h"
#include "worker/rk_worker.h"

static struct rk_status *check_tokens(const struct rk_settings *settings)
{
    struct rk_auth *auth = NULL;
    struct rk_status *st = rk_auth_create(&auth, settings->token_file);

    rk_auth_destroy(auth);
    return st;
}

static struct rk_status *check_tls(const struct rk_settings *settings)
{
    struct rk_tls *tls;
    struct rk_status *st = rk_daemon_tls_create(&tls, settings);

    rk_tls_destroy(tls);
    return st;
}

/* A directory in which locks and the epoch are written. */
static struct rk_status *check_directory(const char *name, const char *path)
{
    struct stat info;

    if (!path)
        return NULL;
    if (stat(path, &info) != 0 || access(path, R_OK | W_OK | X_OK) != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s '%s': %s", name, path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s '%s': not a directory", name, path);
    return NULL;
}

static struct rk_status *check_state(const struct rk_settings *settings)
{
    uint64_t epoch;

    RK_TRY(check_directory("state.dir", settings->state_dir));
    RK_TRY(check_directory("flight.dir", settings->flight_dir));
    return settings->state_dir ? rk_epoch_load(&epoch, settings->state_dir) : NULL;
}

/* The address may be in use by the running daemon that has this configuration. */
static struct rk_status *check_address(const struct rk_listen *listen)
{
    struct rk_status *st = listen->key ? rk_listen_probe(listen) : NULL;

    if (!st || strcmp(rk_status_reason(st), "ADDRESS_IN_USE") != 0)
        return st;
    rk_status_free(st);
    return NULL;
}

/* Not an error: a file system may be mounted later. */
void rk_settings_warn_roots(const struct rk_settings *settings)
{
    for (int i = 0; settings->ckpt_roots[i]; i++) {
        struct stat info;

        if (stat(settings->ckpt_roots[i], &info) != 0)
            RK_WARN("ckpt.roots.%d '%s': %s", i, settings->ckpt_roots[i], strerror(errno));
        else if (!S_ISDIR(info.st_mode))
            RK_WARN("ckpt.roots.%d '%s': not a directory", i, settings->ckpt_roots[i]);
    }
}

bool rk_settings_generates_token(const struct rk_settings *settings)
{
    return settings->runtime_dir && !settings->token_file && !settings->is_insecure &&
           settings->listen.is_local && !settings->asks_certificates;
}

/* Every local user can connect, as to an abstract socket, which is refused without tokens
 * (rk_listen_check_policy); 127.0.0.1 is the default, for a first try on one's own machine, so it only warns.
 */
void rk_settings_warn_open(const struct rk_settings *settings)
{
    const struct rk_listen *listen = &settings->listen;

    if (listen->is_unix || !listen->is_local || settings->token_file || settings->is_insecure ||
        settings->asks_certificates || rk_settings_generates_token(settings))
        return;
    RK_WARN("rpc.listen: every local user can connect to %s:%d and has all rights; set rpc.token_file, use a "
            "Unix socket, or pass --insecure (rpc.insecure)",
            listen->host, listen->port);
}

struct rk_status *rk_daemon_config_check(const struct rk_config *config)
{
    struct rk_problems problems = {0};
    struct rk_settings settings;
    struct rk_status *st = rk_settings_init(&settings, config);

    if (st) {
        rk_settings_fini(&settings);
        return st;
    }
    rk_log_set_level(RK_LOG_WARN);
    rk_log_set_format(RK_LOG_TEXT);
    rk_settings_warn_roots(&settings);
    rk_settings_warn_open(&settings);
    rk_problems_add(&problems, rk_config_origin(config, "rpc.token_file"), check_tokens(&settings));
    rk_problems_add(&problems, rk_config_origin(config, "rpc.tls_cert"), check_tls(&settings));
    rk_problems_add(&problems, NULL, check_directory("RUNTIME_DIRECTORY", settings.runtime_dir));
    rk_problems_add(&problems, rk_config_origin(config, "state.dir"), check_state(&settings));
    rk_problems_add(&problems, rk_config_origin(config, "rpc.listen"), check_address(&settings.listen));
    rk_problems_add(&problems, rk_config_origin(config, "health.listen"), check_address(&settings.health));
    rk_problems_add(&problems, rk_config_origin(config, "metrics.listen"), check_address(&settings.metrics));
    rk_problems_add(&problems, rk_config_origin(config, "device"),
                    rk_worker_check_device(settings.device, settings.plugin));
    rk_settings_fini(&settings);
    return rk_problems_finish(&problems);
}
