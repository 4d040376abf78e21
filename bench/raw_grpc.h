/* Private to bench/: gRPC with no part of rankd around it, as the limit of what calls can reach. */
#ifndef RK_BENCH_RAW_GRPC_H
#define RK_BENCH_RAW_GRPC_H

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include "base/net/rk_tls.h"

#define BENCH_RAW_METHOD "/bench.Raw/Upload"
/* The first argument of rankd-bench as the server of this method. */
#define BENCH_RAW_COMMAND "raw-grpc-server"
/* A call with one message of at most so many bytes is a small call. */
#define BENCH_RAW_SMALL_BYTES 1024

/* Serves until it is killed; prints its address as rankd does. args: the address, and for mutual TLS the
 * files with certificate, key and authority. Returns the exit code. */
int bench_raw_serve(int num_args, char *const *args);

/* With files.cert NULL, without TLS. */
grpc_channel_credentials *bench_raw_client_credentials(const struct rk_tls_files *files);
grpc_server_credentials *bench_raw_server_credentials(const struct rk_tls_files *files);

#endif
