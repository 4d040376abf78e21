/* Private to bench/: the table of benchmarks, and the input and output of a benchmark.
 *
 * rankd-bench forks: every process opens its own device, runs the benchmarks for its number of ranks in the
 * order of the table, and writes results to shared memory. The parent never opens a device. Rank 0 prints,
 * and writes the --json file after every result, so that results survive an aborted run.
 */
#ifndef RK_BENCH_H
#define RK_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "engine/rk_comm.h"
#include "kernels/rk_device.h"
#include "kernels/rk_tensor.h"

#define BENCH_MAX_RANKS 4
#define BENCH_MAX_DIMS  6

struct bench_options {
    const char *device, *group, *json, *compare, *filter;
    const char *plugin; /* NULL: in the program's directory */
    bool is_tiny;       /* small shapes for tests: takes seconds on a laptop; the figures are meaningless */
    bool profiles, lists;
};

/* Peak rates of the device: listed for known devices, otherwise measured before the benchmarks. */
struct bench_ceilings {
    double flops, bytes; /* per second; bf16 GEMMs, device memory traffic; infinite: no bound */
    bool is_measured;
};

/* Cost of one run, and the number of `items` (tokens) that it processes. */
struct bench_cost {
    double flops, bytes, items;
};

typedef enum bench_unit {
    BENCH_TOKENS,  /* tok/s, from items */
    BENCH_TFLOPS,  /* TFLOP/s, from flops */
    BENCH_GBYTES,  /* GB/s, from bytes */
    BENCH_MICROS,  /* us: less is better, like the next two and seconds */
    BENCH_PERCENT, /* % slower */
    BENCH_GIB,
    BENCH_TIMES,  /* x */
    BENCH_FASTER, /* % faster: the opposite of BENCH_PERCENT */
    BENCH_SECONDS,
    BENCH_UNIT_COUNT
} bench_unit_t;

struct bench_unit_row {
    const char *text;
    bool less_is_better;
};
extern const struct bench_unit_row bench_units[BENCH_UNIT_COUNT];

typedef enum bench_state { BENCH_NOT_RUN, BENCH_DONE, BENCH_FAILED, BENCH_SKIPPED } bench_state_t;

struct bench_result {
    bench_state_t state;
    char shape[96], note[256]; /* note: also the reason of a failure or skip */
    double measured, bound;    /* in the unit of the case; bound 0: unknown */
    int clock_mhz;             /* SM clock at the end; 0: unknown */
    double power_w;
};

/* State of one process. */
struct bench_ctx {
    const struct bench_options *options;
    struct rk_device *device;
    struct rk_stream *stream;
    struct bench_ceilings ceilings;
    struct rk_comm_world *world; /* NULL with one rank */
    int32_t rank, num_ranks;
};

struct bench_op;
struct bench_model;

/* Sizes of the mesh axes over all ranks, and chunks per pipeline stage; 0: 1. */
struct bench_layout {
    int32_t tp, cp, dp, pp, vpp, ep;
};

/* A row of the table. */
struct bench_case {
    const char *group, *name; /* group: the subcommand */
    bench_unit_t unit;
    struct rk_status *(*run)(struct bench_ctx *ctx, const struct bench_case *bench,
                             struct bench_result *result);
    int32_t num_ranks; /* 0 and 1: one process */
    const struct bench_op *op;
    const struct bench_model *model;
    struct bench_layout layout, to;                     /* to: destination layout of the weights */
    int64_t dims[BENCH_MAX_DIMS], tiny[BENCH_MAX_DIMS]; /* the meaning is defined by `run` */
    bool is_strict;
};

extern const struct bench_case bench_cases[];
extern const int bench_num_cases;

static inline const int64_t *bench_dims(const struct bench_ctx *ctx, const struct bench_case *bench)
{
    return ctx->options->is_tiny ? bench->tiny : bench->dims;
}

/* --- bench_time.c --- */

/* Median seconds of one call of `fn`: `num_warm` calls, then `num_timed`. `fn` must wait for the device. */
struct rk_status *bench_time(double *seconds, int num_warm, int num_timed,
                             struct rk_status *(*fn)(void *user), void *user) RK_NODISCARD;
double bench_median(double *values, int count); /* sorts */
/* Sets measured and bound in the unit of the case, from the seconds of one run. */
void bench_set_rate(struct bench_result *result, const struct bench_ctx *ctx, const struct bench_case *bench,
                    double seconds, struct bench_cost cost);
double bench_bound_seconds(const struct bench_ceilings *ceilings, struct bench_cost cost);

/* --- the runners: entries of the table --- */

struct rk_status *bench_run_op(struct bench_ctx *ctx, const struct bench_case *bench,
                               struct bench_result *result) RK_NODISCARD;

/* --- machine.c: description of the machine --- */

struct bench_machine {
    char hardware[128], versions[192], date[32];
};
/* Describes the device that ctx has open. */
void bench_machine_describe(struct bench_machine *out, const struct bench_ctx *ctx);
/* Reads the current clock and power. */
void bench_machine_sample(struct bench_result *result, const struct bench_ctx *ctx);
struct rk_status *bench_ceilings_find(struct bench_ceilings *out, struct bench_ctx *ctx) RK_NODISCARD;

/* --- ranks.c: processes --- */

struct bench_shared {
    struct bench_machine machine;
    struct bench_ceilings ceilings;
    struct bench_result results[]; /* [bench_num_cases] */
};
typedef enum bench_outcome { BENCH_GOOD, BENCH_BAD, BENCH_STOP } bench_outcome_t;
/* Runs the selected cases of `num_ranks` in that many processes. BAD when one of them died; STOP when no
 * further group can run, with the reason printed: no device, or results cannot be written. */
bench_outcome_t bench_run_group(struct bench_shared *shared, const struct bench_options *options,
                                int32_t num_ranks, const struct rk_json *baseline);
bool bench_is_selected(const struct bench_options *options, const struct bench_case *bench);

/* --- report.c --- */

/* Reads a --json file of another program: an array of objects with at least name and measured. Prints the
 * names that match no benchmark. */
struct rk_status *bench_baseline_read(struct rk_json **out, const char *path) RK_NODISCARD;
void bench_print_header(const struct bench_shared *shared);
void bench_print_row(const struct bench_case *bench, const struct bench_result *result,
                     const struct rk_json *baseline);
/* Checks that a file of that name can be created. */
struct rk_status *bench_json_check(const char *path) RK_NODISCARD;
/* Replaces the file atomically; no-op without results. */
struct rk_status *bench_json_write(const char *path, const struct bench_shared *shared,
                                   const struct rk_json *baseline) RK_NODISCARD;
/* False, with a message, when writing to standard output failed. */
bool bench_stdout_is_good(void);

/* --- profile.c: a device that runs every operator on another device and records its time --- */

/* Opens the device and makes "profile" run on it; closing "profile" closes both. */
struct rk_status *bench_profile_register(const struct rk_device_config *config) RK_NODISCARD;
void bench_profile_clear(void);
/* Prints and clears the records since the last clear: one row per operator and shape. */
struct rk_status *bench_profile_print(const char *title, const struct bench_ceilings *ceilings) RK_NODISCARD;

#endif
