/* TLS to the daemons: gRPC's credentials for calls, and a separate check for errors that gRPC does not
 * report. */
#ifndef RK_DRIVER_TLS_INTERNAL_H
#define RK_DRIVER_TLS_INTERNAL_H

#include <stdbool.h>

#include <grpc/grpc_security.h>

#include "base/net/rk_tls.h"

struct rk_driver_tls {
    struct rk_tls *tls; /* NULL: none; TCP is plain */
    struct rk_tls_pem pem;
    bool has_cert;
};

/* INVALID_ARGUMENT and others as rk_tls_pem_read; tls_ca NULL: none. */
struct rk_status *rk_driver_tls_init(struct rk_driver_tls *out,
                                     const struct rk_tls_files *files) RK_NODISCARD;
void rk_driver_tls_fini(struct rk_driver_tls *tls);
/* Credentials of a channel to `address`; grpc_channel_credentials_release them. */
grpc_channel_credentials *rk_driver_tls_credentials(const struct rk_driver_tls *tls, const char *address);
/* Connects to a daemon that could not be reached, and checks whether TLS is the cause: UNAUTHENTICATED with
 * the reason TLS, or NULL. Takes up to a few seconds. */
struct rk_status *rk_driver_tls_probe(const struct rk_driver_tls *tls, const char *address) RK_NODISCARD;

#endif
