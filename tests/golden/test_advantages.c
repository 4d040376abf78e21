/* Advantage estimators against verl's own functions in float64, over random batches with ragged, fully masked
 * and interrupted rows and groups of one (gen/make_advantages.py). */
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "rl/rk_algo.h"
#include "tests/support/test.h"

#define NUM_ESTIMATORS 14
#define MIN_CASES      200
#define NUM_KEYS       2
#define GRAD_NORM      0.5 /* as in the generator */

/* The arrays in the files. */
struct tensor {
    char *name;
    int64_t count;
    void *data;
};

static struct {
    struct tensor items[64];
    int64_t count;
} tensors;

static void load(const char *file)
{
    char *relative = rk_format("golden/advantages/%s.safetensors", file);
    char *path = rk_test_fixture_path(relative);
    struct rk_st_file *st;

    assert_ok(rk_st_open(&st, path));
    for (int64_t i = 0; i < rk_st_count(st); i++) {
        const struct rk_st_tensor *tensor = rk_st_at(st, i);
        struct tensor *item = &tensors.items[tensors.count++];

        assert_true(tensors.count <= (int64_t)RK_ARRAY_LEN(tensors.items));
        assert_int_equal(tensor->rank, 1);
        *item = (struct tensor){rk_format("%s/%s", file, tensor->name), tensor->shape[0],
                                rk_malloc(tensor->bytes)};
        assert_ok(rk_st_read(st, tensor, 0, tensor->bytes, item->data));
    }
    rk_st_close(st);
    rk_free(path);
    rk_free(relative);
}

static const struct tensor *find_or_null(const char *file, const char *name)
{
    const struct tensor *found = NULL;
    char *full = rk_format("%s/%s", file, name);

    for (int64_t i = 0; i < tensors.count; i++) {
        if (strcmp(tensors.items[i].name, full) == 0)
            found = &tensors.items[i];
    }
    rk_free(full);
    return found;
}

static const void *find(const char *file, const char *name)
{
    const struct tensor *tensor = find_or_null(file, name);

    if (!tensor)
        fail_msg("%s.safetensors lacks '%s'", file, name);
    return tensor->data;
}

/* One batch, and its offset in the arrays. */
struct batch {
    int64_t index, row, cell;
    int64_t num_rows, width, num_cells;
    char **uid, **pair_uid; /* pair_uid: without groups of one */
    int64_t *mask;
    double *key_rewards[NUM_KEYS];
    float *columns[4]; /* values, old_log_probs, sum_pi_squared, rollout_is_weights */
};

/* Columns that must not be read contain NaN. */
static float *poisoned(const struct batch *batch, const char *name)
{
    const float *source = (const float *)find("inputs", name) + batch->cell;
    float *out = rk_calloc((size_t)batch->num_cells, sizeof(*out));

    for (int64_t i = 0; i < batch->num_cells; i++)
        out[i] = batch->mask[i] ? source[i] : NAN;
    return out;
}

static char **make_uids(const struct batch *batch, const char *name)
{
    const int32_t *group = (const int32_t *)find("inputs", name) + batch->row;
    char **out = rk_calloc((size_t)batch->num_rows, sizeof(*out));

    for (int64_t i = 0; i < batch->num_rows; i++)
        out[i] = rk_format("g%d", group[i]);
    return out;
}

static void free_uids(const struct batch *batch, char **uids)
{
    for (int64_t i = 0; i < batch->num_rows; i++)
        rk_free(uids[i]);
    rk_free(uids);
}

static void batch_open(struct batch *batch)
{
    static const char *const columns[] = {"values", "old_log_probs", "sum_pi_squared", "rollout_is_weights"};
    static const char *const keys[NUM_KEYS] = {"k1", "k2"};
    const uint8_t *mask = (const uint8_t *)find("inputs", "response_mask") + batch->cell;

    batch->num_rows = ((const int32_t *)find("inputs", "num_rows"))[batch->index];
    batch->width = ((const int32_t *)find("inputs", "width"))[batch->index];
    batch->num_cells = batch->num_rows * batch->width;
    batch->uid = make_uids(batch, "group");
    batch->pair_uid = make_uids(batch, "pair_group");
    batch->mask = rk_calloc((size_t)batch->num_cells, sizeof(*batch->mask));
    for (int64_t i = 0; i < batch->num_cells; i++)
        batch->mask[i] = mask[i];
    for (int k = 0; k < NUM_KEYS; k++) {
        const float *rewards = (const float *)find("inputs", keys[k]) + batch->row;

        batch->key_rewards[k] = rk_calloc((size_t)batch->num_rows, sizeof(double));
        for (int64_t i = 0; i < batch->num_rows; i++)
            batch->key_rewards[k][i] = (double)rewards[i];
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(columns); i++)
        batch->columns[i] = poisoned(batch, columns[i]);
}

/* Advances to the next batch. */
static void batch_close(struct batch *batch)
{
    free_uids(batch, batch->uid);
    free_uids(batch, batch->pair_uid);
    rk_free(batch->mask);
    for (int k = 0; k < NUM_KEYS; k++)
        rk_free(batch->key_rewards[k]);
    for (size_t i = 0; i < RK_ARRAY_LEN(batch->columns); i++)
        rk_free(batch->columns[i]);
    batch->index++;
    batch->row += batch->num_rows;
    batch->cell += batch->num_cells;
}

static struct rk_adv_in inputs_of(const char *name, const struct batch *batch)
{
    bool needs_pairs = rk_adv_find(name)->min_group > 1;
    bool has_is_weights = ((const uint8_t *)find("inputs", "has_is_weights"))[batch->index];

    return (struct rk_adv_in){
        .num_rows = batch->num_rows,
        .response_length = batch->width,
        .token_level_rewards = (const float *)find("inputs", "token_level_rewards") + batch->cell,
        .response_mask = batch->mask,
        .uid = (const char *const *)(needs_pairs ? batch->pair_uid : batch->uid),
        .norm_adv_by_std = ((const uint8_t *)find("inputs", "by_std"))[batch->index],
        .gamma = ((const double *)find("inputs", "gamma"))[batch->index],
        .lam = ((const double *)find("inputs", "lam"))[batch->index],
        .values = batch->columns[0],
        .reward_baselines = (const float *)find("inputs", "reward_baselines") + batch->row,
        .old_log_probs = batch->columns[1],
        .sum_pi_squared = batch->columns[2],
        .rollout_is_weights = has_is_weights ? batch->columns[3] : NULL,
        .num_reward_keys = NUM_KEYS,
        .key_rewards = (const double *const *)batch->key_rewards,
        .reward_weights = (const double *)find("inputs", "key_weights") + NUM_KEYS * batch->index,
    };
}

static void compare(const char *label, const struct batch *batch, const float *actual, const double *expected,
                    bool skips_masked)
{
    for (int64_t i = 0; i < batch->num_cells; i++) {
        double error = fabs((double)actual[i] - expected[i]) / fmax(fabs(expected[i]), RK_TOL_FLOOR);

        if (skips_masked && !batch->mask[i])
            continue;
        if (!(error <= RK_TOL_F32_ELEMENT))
            fail_msg("%s, case %lld, cell %lld: %.9g, expected %.9g", label, (long long)batch->index,
                     (long long)i, (double)actual[i], expected[i]);
    }
}

/* [cells] from one value per row. */
static double *spread(const struct batch *batch, const double *rows)
{
    double *out = rk_calloc((size_t)batch->num_cells, sizeof(*out));

    for (int64_t i = 0; i < batch->num_cells; i++)
        out[i] = batch->mask[i] ? rows[i / batch->width] : 0.0;
    return out;
}

static void check_outcome(const char *name, const struct batch *batch, const struct rk_adv_out *out)
{
    double *expected = spread(batch, (const double *)find("rows", name) + batch->row);

    compare(name, batch, out->advantages, expected, false);
    compare(name, batch, out->returns, expected, false);
    rk_free(expected);
}

/* The returns of gae equal the value where the mask is 0, which is NaN here. */
static void check_tokens(const char *name, const struct batch *batch, const struct rk_adv_out *out)
{
    const struct tensor *returns = find_or_null("returns", name);

    compare(name, batch, out->advantages, (const double *)find("cells", name) + batch->cell, false);
    compare(name, batch, out->returns,
            (const double *)(returns ? returns->data : find("returns", "remax")) + batch->cell,
            strcmp(name, "gae") == 0);
}

/* Returns whether verl rejects the batch. */
static bool check_batch(const char *name, const struct batch *batch)
{
    bool is_outcome = find_or_null("rows", name) != NULL;
    char *refused = rk_format("%s.refused", name);
    bool is_refused = ((const uint8_t *)find(is_outcome ? "rows" : "cells", refused))[batch->index];
    struct rk_adv_out out = {rk_calloc((size_t)batch->num_cells, sizeof(float)),
                             rk_calloc((size_t)batch->num_cells, sizeof(float))};
    struct rk_adv_in in = inputs_of(name, batch);
    const struct rk_adv_ops *ops = rk_adv_find(name);

    assert_non_null(ops);
    if (is_refused) {
        assert_code(rk_adv_compute(ops, &out, &in),
                    strcmp(name, "grpo_passk") == 0 ? RK_INVALID_ARGUMENT : RK_ABORTED);
    } else {
        assert_ok(rk_adv_compute(ops, &out, &in));
        if (is_outcome)
            check_outcome(name, batch, &out);
        else
            check_tokens(name, batch, &out);
    }
    rk_free(out.advantages);
    rk_free(out.returns);
    rk_free(refused);
    return is_refused;
}

static void test_every_estimator_gives_what_verl_does(void **state)
{
    int64_t num_cases = find_or_null("inputs", "num_rows")->count, num_refused = 0, num_estimators = 0;
    char *names = rk_strdup(rk_adv_names()), *rest = names;

    (void)state;
    for (char *name = strtok_r(rest, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
        struct batch batch = {0};
        int64_t num_computed = 0;

        while (batch.index < num_cases) {
            bool is_refused;

            batch_open(&batch);
            is_refused = check_batch(name, &batch);
            batch_close(&batch);
            num_computed += !is_refused;
            num_refused += is_refused;
        }
        if (num_computed < MIN_CASES)
            fail_msg("%s: only %lld cases", name, (long long)num_computed);
        num_estimators++;
    }
    assert_int_equal(num_estimators, NUM_ESTIMATORS);
    assert_true(num_refused > 0);
    rk_free(names);
}

/* Goal: the metrics variance_proxy/, with the values as advantages. */
static void test_variance_proxy_gives_what_verl_does(void **state)
{
    static const char *const names[] = {"proxy1_signal_strength", "proxy2_total_power", "proxy3_pure_noise",
                                        "expected_a_squared", "expected_w"};
    int64_t num_cases = find_or_null("inputs", "num_rows")->count, num_measured = 0;
    struct batch batch = {0};

    (void)state;
    while (batch.index < num_cases) {
        struct rk_variance_proxy proxy;
        struct rk_adv_in in;
        int64_t num_rows;

        batch_open(&batch);
        in = inputs_of("gae", &batch);
        num_rows = rk_variance_proxy_measure(
            &proxy,
            &(struct rk_variance_in){in.num_rows, in.response_length, in.response_mask, in.values,
                                     in.old_log_probs, in.sum_pi_squared, in.rollout_is_weights, GRAD_NORM});
        for (size_t i = 0; i < RK_ARRAY_LEN(names) && num_rows > 0; i++) {
            const double actual[] = {proxy.signal_strength, proxy.total_power, proxy.pure_noise,
                                     proxy.expected_a_squared, proxy.expected_w};
            double expected = ((const double *)find("proxies", names[i]))[batch.index];

            assert_below(names[i], fabs(actual[i] - expected), 1e-9 * fmax(1.0, fabs(expected)));
        }
        num_measured += num_rows > 0;
        batch_close(&batch);
    }
    assert_true(num_measured >= MIN_CASES);
}

static int load_all(void **state)
{
    (void)state;
    load("inputs");
    load("rows");
    load("cells");
    load("returns");
    load("proxies");
    return 0;
}

static int free_all(void **state)
{
    (void)state;
    for (int64_t i = 0; i < tensors.count; i++) {
        rk_free(tensors.items[i].name);
        rk_free(tensors.items[i].data);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_estimator_gives_what_verl_does),
        cmocka_unit_test(test_variance_proxy_gives_what_verl_does),
    };

    return cmocka_run_group_tests(tests, load_all, free_all);
}
