/* The configuration: read at the start, read again by SIGHUP. A reload that fails changes nothing. */
#include "daemon/daemon_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/net/rk_secret.h"
#include "daemon/notify_internal.h"
#include "daemon/tls_internal.h"

static void apply_log_settings(const struct rk_settings *settings)
{
    char context[32];

    rk_log_set_level(settings->log_level);
    rk_log_set_format(settings->log_format);
    snprintf(context, sizeof(context), "slot=%d", settings->slot);
    rk_log_set_context(context);
}

/* Settings for DumpFlightRecorder; the text contains names of files with secrets, but no secrets. */
static void keep_config(struct rk_daemon *daemon, const struct rk_config *config)
{
    rk_free(daemon->config_text);
    daemon->config_text = rk_json_dump(rk_config_tree(config), 0, false);
}

struct rk_status *rk_daemon_load_settings(struct rk_daemon *daemon)
{
    struct rk_config *config = NULL;
    struct rk_status *st;

    RK_TRY(rk_daemon_config_load(&config, daemon->args));
    st = rk_settings_init(&daemon->settings, config);
    keep_config(daemon, config);
    rk_config_destroy(config);
    if (st)
        return st;
    apply_log_settings(&daemon->settings);
    if (daemon->settings.is_insecure && !daemon->settings.listen.is_local &&
        !daemon->settings.asks_certificates)
        RK_WARN("rpc.insecure: no authentication: anyone who can connect to %s controls this daemon; set "
                "rpc.token_file",
                daemon->settings.listen.host);
    rk_settings_warn_roots(&daemon->settings);
    if (!rk_settings_generates_token(&daemon->settings))
        RK_TRY(rk_auth_create(&daemon->auth, daemon->settings.token_file));
    return rk_daemon_tls_create(&daemon->tls, &daemon->settings);
}

struct rk_status *rk_daemon_make_token(struct rk_auth **auth, const struct rk_settings *settings)
{
    char *address = rk_listen_format(&settings->listen, settings->listen.port);
    struct rk_status *st = rk_auth_create_generated(auth, settings->runtime_dir, address);

    if (!st)
        RK_INFO("rpc.token_file is not set: the token of this run is in %s/%s", settings->runtime_dir,
                RK_TOKEN_NAME);
    rk_free(address);
    return st;
}

static void use_auth(struct rk_daemon *daemon, struct rk_auth *auth)
{
    rk_server_set_auth(daemon->server, auth);
    if (daemon->health_server)
        rk_server_set_auth(daemon->health_server, auth);
    rk_auth_destroy(daemon->auth);
    daemon->auth = auth;
}

/* Settings after the reload, as far as they decide who may call: the listener stays. Borrows all. */
static struct rk_settings next_access(const struct rk_daemon *daemon, const struct rk_config *config)
{
    struct rk_settings next = daemon->settings;

    next.token_file = (char *)(uintptr_t)rk_config_string(config, "rpc.token_file");
    return next;
}

/* *auth stays NULL when the current one stays in use: a token that the daemon has made is valid until the
 * daemon ends or a file is configured. */
static struct rk_status *make_auth(struct rk_auth **auth, const struct rk_daemon *daemon,
                                   const struct rk_settings *next)
{
    RK_TRY(rk_listen_check_policy(&next->listen, next->is_insecure, next->tls_cert != NULL,
                                  next->asks_certificates, next->token_file != NULL));
    if (!rk_settings_generates_token(next))
        return rk_auth_create(auth, next->token_file);
    if (rk_settings_generates_token(&daemon->settings))
        return NULL;
    return rk_daemon_make_token(auth, next);
}

/* No file is better than one whose token is not valid, which rankctl would send. */
static void remove_generated(const struct rk_daemon *daemon)
{
    char *path = rk_path_join(daemon->settings.runtime_dir, RK_TOKEN_NAME);

    if (unlink(path) != 0 && errno != ENOENT)
        RK_WARN("cannot remove '%s', a token that is not valid any more: %s", path, strerror(errno));
    rk_free(path);
}

static struct rk_status *reload(struct rk_daemon *daemon)
{
    bool was_generated = rk_settings_generates_token(&daemon->settings), is_generated;
    struct rk_config *config = NULL;
    struct rk_auth *auth = NULL;
    struct rk_settings next;
    struct rk_status *st;

    RK_TRY(rk_daemon_config_load(&config, daemon->args));
    next = next_access(daemon, config);
    is_generated = rk_settings_generates_token(&next);
    st = make_auth(&auth, daemon, &next);
    if (!st)
        st = rk_daemon_tls_reload(daemon->tls, &daemon->settings, config);
    if (st ? is_generated && !was_generated : was_generated && !is_generated)
        remove_generated(daemon);
    if (!st) {
        daemon->tls_warned_ns = 0;
        rk_settings_reload(&daemon->settings, config);
        apply_log_settings(&daemon->settings);
        if (auth)
            use_auth(daemon, auth);
        auth = NULL;
    }
    if (!st)
        keep_config(daemon, config);
    rk_auth_destroy(auth);
    rk_config_destroy(config);
    return st;
}

void rk_daemon_reload(struct rk_daemon *daemon)
{
    struct rk_status *st;

    rk_notify_reloading();
    st = reload(daemon);
    daemon->metrics.reload_failures += st != NULL;
    if (st)
        RK_ERROR("reload refused, the old configuration stays in use: %s", rk_status_message(st));
    else
        RK_INFO("reloaded: certificates, tokens, log, lease and drain settings");
    rk_status_free(st);
    rk_notify_ready();
}
