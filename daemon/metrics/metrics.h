/* Counters of the daemon, and the text of a scrape (docs/metrics.md). All of it belongs to L, except
 * the atomics. The number of series is bounded: by the tables of RPCs, codes and methods, and by the limits
 * below, beyond which counts go to a series "other". */
#ifndef RK_DAEMON_METRICS_H
#define RK_DAEMON_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/metrics/metrics_text_internal.h"
#include "proto/rk_rpcs.h"
#include "worker/rk_worker.h"

#define RK_METRICS_RPCS         (RK_RPC_COUNT + 1) /* the last row: unknown paths */
#define RK_METRICS_METHODS_MAX  64                 /* pairs of role and method */
#define RK_METRICS_FAILURES_MAX 64                 /* role, method and reason */
#define RK_METRICS_STEP_MAX     256                /* metrics of the last calls, over all methods */

struct rk_daemon;
struct rk_loop;

struct rk_rpc_metrics {
    uint64_t by_code[RK_CODE_COUNT];
    struct rk_histogram duration;
    _Atomic uint64_t received_bytes; /* G adds */
    _Atomic uint64_t sent_bytes;
};

/* `role` and `method` of all these; empty: the series "other". */
struct rk_method_metrics {
    char role[32];
    const char *method; /* static */
    uint64_t by_code[RK_CODE_COUNT];
    struct rk_histogram duration;
    uint64_t num_tokens;
};

struct rk_failure_metrics {
    char role[32], reason[32];
    const char *method;
    uint64_t count;
};

struct rk_step_metrics {
    char role[32], name[64];
    const char *method, *reduce;
    double value;
};

/* Owned by the daemon; zero-initialised. */
struct rk_metrics {
    struct rk_rpc_metrics rpcs[RK_METRICS_RPCS];
    struct rk_method_metrics methods[RK_METRICS_METHODS_MAX];
    int num_methods;
    struct rk_failure_metrics failures[RK_METRICS_FAILURES_MAX];
    int num_failures;
    struct rk_step_metrics steps[RK_METRICS_STEP_MAX];
    int num_steps;
    uint64_t num_prompt_tokens;
    struct rk_histogram first_token;
    uint64_t checkpoint_bytes;
    struct rk_histogram checkpoint_duration;
    int64_t checkpoint_unix_ns; /* the last; 0: none */
    uint64_t reload_failures, scrapes;
};

struct rk_call_end {
    int rpc; /* rk_rpc_id_t, or RK_RPC_COUNT */
    rk_code_t code;
    int64_t ns;
    bool is_endless; /* as long as the client stays: its duration is not counted */
};

void rk_metrics_count_call(struct rk_metrics *metrics, const struct rk_call_end *end);
/* A method has ended. */
void rk_metrics_count_job(struct rk_metrics *metrics, const struct rk_job *job);
/* The complete text of a scrape. L. */
void rk_metrics_render(struct rk_daemon *daemon, struct rk_str *out);

/* --- metrics_process.c --- */
void rk_metrics_put_process(struct rk_metrics_text *text, int64_t uptime_ns);

#endif
