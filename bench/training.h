/* Private to bench/: a model that trains repeatedly on one batch. */
#ifndef RK_BENCH_TRAINING_H
#define RK_BENCH_TRAINING_H

#include "bench/models.h"

#define BENCH_DATASHEET_H200 \
    989e12 /* bf16 FLOP/s: the peak for which model FLOPs utilisation (MFU) is usually given */

struct bench_training {
    struct bench_instance instance;
    struct bench_batch batch;
    int64_t num_micros;            /* of a step; each of them is the batch */
    bool steps;                    /* runs the optimizer too */
    rk_head_output_t output;       /* output that the loss reads */
    double token_weight;           /* weight of a token in the loss */
    struct bench_instance *frozen; /* NULL, or a second model whose log-probs are part of a step */
    /* As in struct rk_train_work. */
    struct rk_status *(*on_step)(void *user, struct rk_pipeline_step step, bool is_done);
    void *on_step_user;
};

/* dims: sequences of the batch, tokens of each. Micro-batches of a step: those of the desc. */
struct rk_status *bench_training_open(struct bench_training *training, struct bench_ctx *ctx,
                                      const int64_t *dims,
                                      const struct bench_instance_desc *desc) RK_NODISCARD;
void bench_training_close(struct bench_training *training); /* also if opening failed */
/* A step of a struct bench_training, or only its gradients: for bench_time. */
struct rk_status *bench_training_run(void *training) RK_NODISCARD;

/* Seconds of a step on a model made for it: the median of `num_timed` steps after `num_warm`. With --profile,
 * then prints the operators of one more step. */
struct rk_status *bench_time_training(double *seconds, struct bench_ctx *ctx, const struct bench_case *bench,
                                      const struct bench_instance_desc *desc, int num_warm,
                                      int num_timed) RK_NODISCARD;
/* One more run, printing the operators of rank 0. */
struct rk_status *bench_print_profile(struct bench_ctx *ctx, const struct bench_case *bench,
                                      struct rk_status *(*run)(void *user), void *user) RK_NODISCARD;

/* --- bench_layouts.c: of rows with a layout --- */
struct bench_instance_desc bench_layout_desc(const struct bench_ctx *ctx, const struct bench_case *bench);
/* Cost of a step of all ranks. */
struct bench_cost bench_layout_cost(const struct bench_ctx *ctx, const struct bench_case *bench,
                                    const struct bench_instance_desc *desc);

#endif
