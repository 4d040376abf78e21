/* The daemon's certificates: read at the start, read again by SIGHUP. */
#ifndef RK_DAEMON_TLS_INTERNAL_H
#define RK_DAEMON_TLS_INTERNAL_H

#include "base/net/rk_tls.h"
#include "daemon/config_internal.h"

/* Whether TCP uses TLS. */
bool rk_settings_have_tls(const struct rk_settings *settings);
/* Borrows the paths of the settings. */
struct rk_tls_files rk_settings_tls_files(const struct rk_settings *settings);
/* *out is NULL without TLS. */
struct rk_status *rk_daemon_tls_create(struct rk_tls **out, const struct rk_settings *settings) RK_NODISCARD;
/* Loads the current files of `config`; on failure nothing has changed. Whether TLS and client certificates
 * are used stays as in `old`. */
struct rk_status *rk_daemon_tls_reload(struct rk_tls *tls, const struct rk_settings *old,
                                       const struct rk_config *config) RK_NODISCARD;
rk_tls_demand_t rk_settings_tls_demand(const struct rk_settings *settings);
/* Logs a certificate that expires within the next days, once per day; the caller owns *warned_ns, initially
 * 0.
 */
void rk_daemon_tls_warn(struct rk_tls *tls, int64_t *warned_ns);

#endif
