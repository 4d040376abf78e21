#include "daemon/tls_internal.h"

#include <inttypes.h>
#include <time.h>

#include "base/rk_log.h"
#include "base/rk_time.h"

#define DAY_S         (24 * 3600LL)
#define WARN_DAYS     14
#define WARN_AGAIN_NS (DAY_S * 1000000000LL)

bool rk_settings_have_tls(const struct rk_settings *settings)
{
    return settings->tls_cert != NULL;
}

struct rk_tls_files rk_settings_tls_files(const struct rk_settings *settings)
{
    return (struct rk_tls_files){
        .cert = settings->tls_cert, .key = settings->tls_key, .ca = settings->tls_ca, .prefix = "rpc.tls_"};
}

struct rk_status *rk_daemon_tls_create(struct rk_tls **out, const struct rk_settings *settings)
{
    struct rk_tls_files files = rk_settings_tls_files(settings);

    *out = NULL;
    return rk_settings_have_tls(settings) ? rk_tls_create(out, &files) : NULL;
}

rk_tls_demand_t rk_settings_tls_demand(const struct rk_settings *settings)
{
    if (!settings->tls_ca)
        return RK_TLS_PEER_ANY;
    return settings->asks_certificates ? RK_TLS_PEER_REQUIRED : RK_TLS_PEER_OPTIONAL;
}

static struct rk_status *check_same(const char *key, const char *old, const char *next)
{
    if (!old == !next)
        return NULL;
    return RK_FAIL(RK_FAILED_PRECONDITION, "%s: was %s at the start; restart the daemon to change that", key,
                   old ? "set" : "not set");
}

struct rk_status *rk_daemon_tls_reload(struct rk_tls *tls, const struct rk_settings *old,
                                       const struct rk_config *config)
{
    struct rk_settings next = {0};
    struct rk_tls_files files;
    struct rk_status *st;

    rk_settings_reload(&next, config);
    files = rk_settings_tls_files(&next);
    st = check_same("rpc.tls_cert", old->tls_cert, next.tls_cert);
    if (!st)
        st = check_same("rpc.tls_ca", old->tls_ca, next.tls_ca);
    if (!st && tls)
        st = rk_tls_reload(tls, &files);
    rk_settings_fini(&next);
    return st;
}

void rk_daemon_tls_warn(struct rk_tls *tls, int64_t *warned_ns)
{
    int64_t now_ns = rk_time_now_ns(), left_s;

    if (!tls || (*warned_ns != 0 && now_ns - *warned_ns < WARN_AGAIN_NS))
        return;
    *warned_ns = now_ns;
    left_s = rk_tls_expires_s(tls) - time(NULL);
    if (left_s <= 0)
        RK_ERROR("rpc.tls_cert: the certificate has expired: clients refuse this daemon");
    else if (left_s < WARN_DAYS * DAY_S)
        RK_WARN("rpc.tls_cert: the certificate expires in %" PRId64 " days", (int64_t)(left_s / DAY_S));
}
