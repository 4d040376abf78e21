/* Private to bench/: daemons that a benchmark starts, and the benchmarks of calls to them. */
#ifndef RK_BENCH_RPC_H
#define RK_BENCH_RPC_H

#include "base/net/rk_tls.h"
#include "bench/bench.h"

typedef enum bench_transport { BENCH_TCP, BENCH_UNIX, BENCH_TLS } bench_transport_t;

const char *bench_transport_name(bench_transport_t transport);

/* --- bench_daemons.c --- */
struct bench_daemons;

/* The rankd in this program's directory, on the CPU with one thread each. */
struct rk_status *bench_daemons_start(struct bench_daemons **out, bench_transport_t transport,
                                      int32_t count) RK_NODISCARD;
/* One server of gRPC alone instead (raw_grpc.h), which is then the first address. */
struct rk_status *bench_daemons_start_raw(struct bench_daemons **out,
                                          bench_transport_t transport) RK_NODISCARD;
/* Kills them; NULL is a no-op. */
void bench_daemons_stop(struct bench_daemons *daemons);
const char *const *bench_daemons_addresses(const struct bench_daemons *daemons);
/* TLS files for callers; empty except over BENCH_TLS. Borrowed. */
struct rk_tls_files bench_daemons_tls_files(const struct bench_daemons *daemons);

/* --- raw_copy.c --- */
/* Best seconds of `num_times` copies of `bytes` from memory to memory, from one thread to another through a
 * TCP connection over loopback, or a Unix socket. */
struct rk_status *bench_raw_copy(double *seconds, bool over_tcp, size_t bytes, int num_times) RK_NODISCARD;

/* --- bench_rpc.c: entries of the table --- */
struct rk_status *bench_run_rpc_status(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_rpc_dispatch(struct bench_ctx *ctx, const struct bench_case *bench,
                                         struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_rpc_stream(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_rpc_beside(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result) RK_NODISCARD;

/* --- bench_raw_grpc.c: entries of the table --- */
struct rk_status *bench_run_rpc_raw_call(struct bench_ctx *ctx, const struct bench_case *bench,
                                         struct bench_result *result) RK_NODISCARD;
struct rk_status *bench_run_rpc_raw_stream(struct bench_ctx *ctx, const struct bench_case *bench,
                                           struct bench_result *result) RK_NODISCARD;

#endif
