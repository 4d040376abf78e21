/* Rows of the loss table on small micro-batches. */
#ifndef RK_TEST_LOSSES_H
#define RK_TEST_LOSSES_H

#include "base/math/rk_loss_agg.h"
#include "base/format/rk_safetensors.h"
#include "engine/rk_loss.h"

RK_BEGIN_DECLS

#define RK_TEST_LOSS_TOKENS 64

struct rk_test_batch {
    int32_t cu_seqlens[RK_TEST_LOSS_TOKENS + 1], num_seqs;
    uint8_t mask[RK_TEST_LOSS_TOKENS];
    double outputs[RK_HEAD_OUTPUT_COUNT][RK_TEST_LOSS_TOKENS];
    double columns[RK_LOSS_COLUMN_COUNT][RK_TEST_LOSS_TOKENS];
    uint32_t absent; /* RK_LOSS_BIT of columns that the batch does not have */
    rk_loss_agg_mode_t mode;
    struct rk_loss_denominators global;
    struct rk_loss_ids ids; /* for rows that read several ids a position */
    double *id_grads;
};

struct rk_test_loss {
    const struct rk_loss *row;
    const struct rk_loss_ops *ops;                            /* the row's */
    double config[RK_LOSS_CONFIG_BYTES_MAX / sizeof(double)]; /* bytes, aligned */
};

struct rk_test_loss_result {
    double grads[RK_HEAD_OUTPUT_COUNT][RK_TEST_LOSS_TOKENS];
    double metrics[RK_LOSS_METRICS_MAX];
};

/* The row's configuration from `options`, a JSON object; missing keys have their defaults. */
struct rk_status *rk_test_loss_read(struct rk_test_loss *out, const struct rk_loss *row,
                                    const char *options) RK_NODISCARD;
/* Adds the defaults of missing keys to options of update_actor. */
void rk_test_policy_options(struct rk_json *options);
/* The row that distillation with this loss_mode adds to the policy objective. */
const struct rk_loss *rk_test_distill_row(const char *loss_mode);
struct rk_test_loss_result rk_test_loss_run(const struct rk_test_loss *loss,
                                            const struct rk_test_batch *batch);
/* Asserts that the row has the metric. */
double rk_test_loss_metric(const struct rk_test_loss *loss, const struct rk_test_loss_result *result,
                           const char *name);
/* The sequences [first, first + count) of a batch, with its denominators. */
struct rk_test_batch rk_test_batch_take(const struct rk_test_batch *all, int32_t first, int32_t count);

/* --- fixtures --- */
/* "golden/losses/inputs.safetensors"; rk_st_close it. */
struct rk_st_file *rk_test_fixture_open(const char *name);
/* A tensor as f64, and its number of elements unless count is NULL; rk_free it. Fails if it does not exist.
 */
double *rk_test_fixture_tensor(const struct rk_st_file *file, const char *name, int64_t *count);

RK_END_DECLS

#endif
