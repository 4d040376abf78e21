#include "tests/support/losses.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_json.h"
#include "tests/support/test.h"

static void set_default(struct rk_json *options, const struct rk_config_key *key)
{
    struct rk_json *value;

    if (rk_json_find(options, key->path))
        return;
    assert_ok(rk_json_parse(&value, key->default_text, strlen(key->default_text), key->path, 0));
    rk_json_set(options, key->path, value);
}

struct rk_status *rk_test_loss_read(struct rk_test_loss *out, const struct rk_loss *row, const char *options)
{
    const struct rk_loss_ops *ops = row->ops;
    struct rk_json *json;
    struct rk_status *st;

    *out = (struct rk_test_loss){.row = row, .ops = ops};
    assert_ok(rk_json_parse(&json, options, strlen(options), "options", 0));
    for (int64_t i = 0; i < ops->num_knobs; i++)
        set_default(json, &ops->knobs[i].key);
    st = rk_knobs_read(out->config, ops->knobs, ops->num_knobs, json);
    rk_json_free(json);
    return st || !ops->check ? st : ops->check(out->config);
}

void rk_test_policy_options(struct rk_json *options)
{
    static const struct rk_config_key keys[] = {
#define KEY(a, b, c, field, key, type, def, min, max, choices, flags, help) \
    {key, RK_CONFIG_OPEN, def, 0, 0, NULL, 0, ""},
        RK_POLICY_LOSS_KNOBS(KEY, , , ) RK_DISTILL_KNOBS(KEY, , , ) RK_ROLLOUT_CORRECTION_KNOBS(KEY, , , )
#undef KEY
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(keys); i++)
        set_default(options, &keys[i]);
}

const struct rk_loss *rk_test_distill_row(const char *loss_mode)
{
    struct rk_json *options = rk_json_new_object();
    struct rk_objective objective;

    rk_json_set(options, "distillation.enabled", rk_json_new_bool(true));
    rk_json_set(options, RK_KNOB_DISTILL "use_task_rewards", rk_json_new_bool(false));
    rk_json_set(options, RK_KNOB_DISTILL "loss_mode", rk_json_new_string(loss_mode));
    rk_test_policy_options(options);
    assert_ok(rk_objective_read(&objective, RK_OBJECTIVE_POLICY, options));
    rk_json_free(options);
    assert_int_equal(objective.num_terms, 1);
    return objective.terms[0].loss;
}

struct rk_test_loss_result rk_test_loss_run(const struct rk_test_loss *loss,
                                            const struct rk_test_batch *batch)
{
    double weights[3][RK_TEST_LOSS_TOKENS] = {{0}};
    const rk_loss_agg_mode_t modes[3] = {batch->mode, RK_AGG_TOKEN_MEAN, RK_AGG_SEQ_MEAN_TOKEN_MEAN};
    struct rk_test_loss_result result = {0};
    struct rk_loss_in in = {
        .num_tokens = batch->cu_seqlens[batch->num_seqs],
        .num_seqs = batch->num_seqs,
        .cu_seqlens = batch->cu_seqlens,
        .mask = batch->mask,
        .weight = weights[0],
        .token_weight = weights[1],
        .seq_weight = weights[2],
        .num_sequences = batch->global.num_sequences,
        .agg_mode = batch->mode,
        .is_first_pass = true,
        .ids = batch->ids,
    };
    struct rk_loss_out out = {.metrics = result.metrics, .id_grads = batch->id_grads};

    for (int i = 0; i < 3; i++)
        rk_loss_weights(weights[i], modes[i], batch->mask, batch->cu_seqlens, batch->num_seqs,
                        &batch->global);
    for (int i = 0; i < RK_LOSS_COLUMN_COUNT; i++) {
        if ((loss->row->columns | loss->row->optional_columns) & RK_LOSS_BIT(i) & ~batch->absent)
            in.columns[i] = batch->columns[i];
    }
    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++) {
        if (!(loss->ops->outputs & RK_HEAD_BIT(i)))
            continue;
        in.outputs[i] = batch->outputs[i];
        out.grads[i] = result.grads[i];
    }
    for (int32_t i = 0; i < loss->ops->num_metrics; i++)
        result.metrics[i] = rk_loss_reduce_start(loss->ops->metrics[i].reduce);
    loss->ops->forward_backward(&out, &in, loss->config);
    return result;
}

double rk_test_loss_metric(const struct rk_test_loss *loss, const struct rk_test_loss_result *result,
                           const char *name)
{
    for (int32_t i = 0; i < loss->ops->num_metrics; i++) {
        if (strcmp(loss->ops->metrics[i].name, name) == 0)
            return result->metrics[i];
    }
    fail_msg("loss %s has no metric %s", loss->row->name, name);
    return NAN;
}

struct rk_test_batch rk_test_batch_take(const struct rk_test_batch *all, int32_t first, int32_t count)
{
    struct rk_test_batch batch = *all;
    int32_t begin = all->cu_seqlens[first], n = all->cu_seqlens[first + count] - begin;

    batch.num_seqs = count;
    for (int32_t i = 0; i <= count; i++)
        batch.cu_seqlens[i] = all->cu_seqlens[first + i] - begin;
    memmove(batch.mask, all->mask + begin, (size_t)n);
    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++)
        memmove(batch.outputs[i], all->outputs[i] + begin, (size_t)n * sizeof(double));
    for (int i = 0; i < RK_LOSS_COLUMN_COUNT; i++)
        memmove(batch.columns[i], all->columns[i] + begin, (size_t)n * sizeof(double));
    return batch;
}

struct rk_st_file *rk_test_fixture_open(const char *name)
{
    char *path = rk_test_fixture_path(name);
    struct rk_st_file *file;

    assert_ok(rk_st_open(&file, path));
    rk_free(path);
    return file;
}

double *rk_test_fixture_tensor(const struct rk_st_file *file, const char *name, int64_t *count)
{
    const struct rk_st_tensor *tensor = rk_st_find(file, name);
    void *bytes;
    double *values;
    int64_t n = 1;

    if (!tensor)
        fail_msg("%s has no tensor %s", rk_st_path(file), name);
    for (int32_t i = 0; i < tensor->rank; i++)
        n *= tensor->shape[i];
    bytes = rk_malloc(tensor->bytes);
    values = rk_malloc((size_t)n * sizeof(*values));
    assert_ok(rk_st_read(file, tensor, 0, tensor->bytes, bytes));
    for (int64_t i = 0; i < n; i++) {
        if (tensor->dtype == RK_DTYPE_U8)
            values[i] = ((const uint8_t *)bytes)[i];
        else if (tensor->dtype == RK_DTYPE_I32)
            values[i] = ((const int32_t *)bytes)[i];
    }
    if (tensor->dtype == RK_DTYPE_F32 || tensor->dtype == RK_DTYPE_F64)
        rk_load_f64(values, bytes, tensor->dtype, n);
    rk_free(bytes);
    if (count)
        *count = n;
    return values;
}
