/* Private to bench/: a model that trains on one batch, over and over. */
#ifndef RK_BENCH_TRAINING_H
#define RK_BENCH_TRAINING_H

#include "bench/models.h"

#define BENCH_DATASHEET_H200                                                      \
    989e12 /* bf16 FLOP/s: what model FLOPs utilisation (MFU) is usually given of \
            */

struct bench_training {
    struct bench_instance instance;
    struct bench_batch batch;
    int64_t num_micros;            /* of a step; each of them is the batch */
    bool steps;                    /* the optimizer too */
    rk_head_output_t output;       /* that the loss reads */
    double token_weight;           /* of the loss */
    struct bench_instance *frozen; /* NULL, or a second model: its log-probs are part of a step */
    /* As in struct rk_train_work. */
    struct rk_status *(*on_step)(void *user, struct rk_pipeline_step step, bool is_done);
    void *on_step_user;
};

/* dims: sequences of the batch, tokens of each. Micro-batches of a step: those of the desc. */
struct rk_status *bench_training_open(struct bench_training *training, struct bench_ctx *ctx,
                                      const int64_t *dims,
                                      const struct bench_instance_desc *desc) RK_NODISCARD;
void bench_training_close(struct bench_training *training); /* also of one that did not open */
/* A step of a struct bench_training, or its gradients only: for bench_time. */
struct rk_status *bench_training_run(void *training) RK_NODISCARD;

/* Seconds of a step on a model made for it: the median of `num_timed` behind `num_warm`. With --profile, then
 * prints the operators of one more. */
struct rk_status *bench_time_training(double *seconds, struct bench_ctx *ctx, const struct bench_case *bench,
                                      const struct bench_instance_desc *desc, int num_warm,
                                      int num_timed) RK_NODISCARD;
/* One more run, with the operators of rank 0 printed. */
struct rk_status *bench_print_profile(struct bench_ctx *ctx, const struct bench_case *bench,
                                      struct rk_status *(*run)(void *user), void *user) RK_NODISCARD;

/* --- bench_layouts.c: of rows with a layout --- */
struct bench_instance_desc bench_layout_desc(const struct bench_ctx *ctx, const struct bench_case *bench);
/* Of a step of all ranks. */
struct bench_cost bench_layout_cost(const struct bench_ctx *ctx, const struct bench_case *bench,
                                    const struct bench_instance_desc *desc);

#endif
