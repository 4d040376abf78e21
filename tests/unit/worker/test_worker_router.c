/* Metrics of routers: reported by every update of a model with experts, equal on all replicas, and by no
 * other model; those of losses only if the losses are on. */
#include "tests/unit/worker/cluster.h"

#include <math.h>

#include "base/rk_alloc.h"
#include "base/config/rk_knobs.h"
#include "base/rk_str.h"

#define ROWS    4
#define TOKENS  9
#define EXPERTS 6
#define NUM_DP  2
#define MOE                                                                                            \
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 32, \"intermediate_size\": 48,"                  \
    " \"moe_intermediate_size\": 16, \"num_experts\": 6, \"num_experts_per_tok\": 2, \"head_dim\": 8," \
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"               \
    " \"vocab_size\": 61, \"max_position_embeddings\": 64, \"initializer_range\": 0.3,"                \
    " \"num_labels\": 1, \"eos_token_id\": 2}"

static struct rk_batch *make_batch(void)
{
    static const char *const reals[] = {"values", "returns"};
    static const char *const columns[] = {"input_ids", "attention_mask", "position_ids",
                                          "loss_mask", "responses",      "response_mask",
                                          "values",    "returns",        NULL};
    struct rk_batch *batch = test_samples(ROWS, TOKENS), *selected;
    const int64_t shape[] = {ROWS, TOKENS}, response_shape[] = {ROWS, 2};
    void *data;

    for (size_t i = 0; i < RK_ARRAY_LEN(reals); i++) {
        assert_ok(rk_batch_add_dense(batch, reals[i], RK_DTYPE_F32, 2, response_shape, &data));
        for (int j = 0; j < ROWS * 2; j++)
            ((float *)data)[j] = 0.1F * (float)j * (float)i;
    }
    assert_ok(rk_batch_add_dense(batch, "loss_mask", RK_DTYPE_I64, 2, shape, &data));
    for (int64_t i = 0; i < ROWS * TOKENS; i++)
        ((int64_t *)data)[i] = i % TOKENS >= 2;
    assert_ok(rk_batch_select(&selected, batch, columns, NULL));
    rk_batch_destroy(batch);
    return selected;
}

struct update {
    const char *role, *method, *mask, *prefix;
    const char *columns[9];
};

static const struct update updates[] = {
    {"actor",
     "update_sft",
     "loss_mask",
     "train",
     {"input_ids", "attention_mask", "position_ids", "loss_mask", NULL}},
    {"critic",
     "update_critic",
     "response_mask",
     "critic",
     {"input_ids", "attention_mask", "position_ids", "responses", "response_mask", "values", "returns",
      NULL}},
};

/* Two steps on two replicas. */
static void run(struct test_cluster *cluster, const struct update *update, struct rk_job **jobs)
{
    struct rk_batch *batch = make_batch(), *selected, *chunks[NUM_DP];

    assert_ok(rk_batch_select(&selected, batch, update->columns, NULL));
    assert_ok(rk_batch_chunk(chunks, selected, NUM_DP));
    for (int32_t rank = 0; rank < NUM_DP; rank++) {
        struct rk_batch *input;

        assert_ok(rk_batch_clone(&input, chunks[rank]));
        jobs[rank] = test_method_job(update->role, update->method, "{}", input);
        test_plan(jobs[rank], chunks, NUM_DP, update->mask, 2, 1);
    }
    for (int32_t rank = 0; rank < NUM_DP; rank++)
        rk_worker_submit(cluster->workers[rank], jobs[rank]);
    for (int32_t rank = 0; rank < NUM_DP; rank++) {
        test_cluster_wait(cluster, jobs[rank]);
        assert_ok(rk_status_clone(jobs[rank]->status));
        rk_batch_destroy(chunks[rank]);
    }
    rk_batch_destroy(selected);
    rk_batch_destroy(batch);
}

static double metric(const struct rk_job *job, const struct update *update, const char *name)
{
    char *path = rk_format("%s/%s", update->prefix, name);
    double value = test_metric(job, path);

    rk_free(path);
    return value;
}

static void check_metrics(struct test_cluster *cluster, const struct update *update)
{
    struct rk_job *jobs[NUM_DP];
    double mean, max;

    run(cluster, update, jobs);
    mean = metric(jobs[0], update, "moe_max_load/mean");
    max = metric(jobs[0], update, "moe_max_load/max");
    assert_true(mean >= 1.0 && mean <= max);
    assert_true(max <= EXPERTS / 2.0);
    assert_true(metric(jobs[0], update, "moe_router_entropy") > 0.0);
    assert_true(metric(jobs[0], update, "moe_router_entropy") <= log(EXPERTS));
    assert_true(metric(jobs[1], update, "moe_max_load/mean") == mean);
    assert_true(metric(jobs[1], update, "moe_max_load/max") == max);
    for (int32_t rank = 0; rank < NUM_DP; rank++)
        rk_job_destroy(jobs[rank]);
}

static char *options_of(const char *hf_config, const char *more)
{
    return rk_format("{\"model.hf_config\": %s%s}", hf_config, more);
}

static void open_workers(struct test_cluster *cluster)
{
    const struct rk_mesh_spec spec = {.tp = 1, .cp = 1, .dp = NUM_DP, .pp = 1, .ep = 1};
    const struct test_mesh meshes[] = {{"actor", spec}, {"critic", spec}};

    test_cluster_open(cluster, NUM_DP, NULL);
    test_cluster_configure(cluster, 1, meshes, RK_ARRAY_LEN(meshes));
}

static void open_cluster(struct test_cluster *cluster, const char *hf_config, const char *more)
{
    char *options = options_of(hf_config, more);

    open_workers(cluster);
    for (size_t i = 0; i < RK_ARRAY_LEN(updates); i++) {
        struct rk_job *jobs[NUM_DP];

        test_cluster_call(cluster, updates[i].role, "init_model", options, NULL, jobs);
        for (int32_t rank = 0; rank < NUM_DP; rank++) {
            assert_ok(rk_status_clone(jobs[rank]->status));
            rk_job_destroy(jobs[rank]);
        }
    }
    rk_free(options);
}

static void test_updates_report_routers(void **state)
{
    struct test_cluster cluster;

    (void)state;
    open_cluster(&cluster, MOE, "");
    for (size_t i = 0; i < RK_ARRAY_LEN(updates); i++)
        check_metrics(&cluster, &updates[i]);
    test_cluster_close(&cluster);
}

static void test_dense_models_report_none(void **state)
{
    struct test_cluster cluster;
    struct rk_job *jobs[NUM_DP];

    (void)state;
    open_cluster(&cluster, test_hf_config, "");
    run(&cluster, &updates[0], jobs);
    assert_true(metric(jobs[0], &updates[0], "grad_norm") > 0.0);
    assert_true(isnan(metric(jobs[0], &updates[0], "moe_max_load/mean")));
    assert_true(isnan(metric(jobs[0], &updates[0], "moe_router_entropy")));
    for (int32_t rank = 0; rank < NUM_DP; rank++)
        rk_job_destroy(jobs[rank]);
    test_cluster_close(&cluster);
}

static void check_losses(struct test_cluster *cluster, const struct update *update)
{
    struct rk_job *jobs[NUM_DP];

    run(cluster, update, jobs);
    assert_true(metric(jobs[0], update, "seq_load_balancing_loss") > 0.0);
    assert_true(metric(jobs[0], update, "z_loss") > 0.0);
    assert_true(isnan(metric(jobs[0], update, "load_balancing_loss")));
    for (int32_t rank = 0; rank < NUM_DP; rank++)
        rk_job_destroy(jobs[rank]);
}

static void test_losses_are_reported_by_their_names(void **state)
{
    struct test_cluster cluster;

    (void)state;
    open_cluster(&cluster, MOE,
                 ", \"" RK_KNOB_BALANCING_TYPE "\": \"seq_aux_loss\", \"" RK_KNOB_AUX_LOSS
                 "\": 0.01, \"" RK_KNOB_Z_LOSS "\": 0.001");
    for (size_t i = 0; i < RK_ARRAY_LEN(updates); i++)
        check_losses(&cluster, &updates[i]);
    test_cluster_close(&cluster);
}

/* Goal: a value that a key does not take is refused before memory is taken, and named. */
static void test_bad_values_are_refused(void **state)
{
    static const struct {
        const char *hf_config, *more, *names;
    } cases[] = {
        {MOE, ", \"" RK_KNOB_AUX_LOSS "\": -0.5", RK_KNOB_AUX_LOSS},
        {MOE, ", \"" RK_KNOB_Z_LOSS "\": -1", RK_KNOB_Z_LOSS},
        {MOE, ", \"" RK_KNOB_BALANCING_TYPE "\": \"global_aux_loss\"", RK_KNOB_BALANCING_TYPE},
        {MOE, ", \"" RK_KNOB_BALANCING_TYPE "\": \"sinkhorn\"", "seq_aux_loss"},
        {MOE, ", \"" RK_KNOB_FREEZE_ROUTER "\": true, \"" RK_KNOB_Z_LOSS "\": 0.5", RK_KNOB_Z_LOSS "=0.5"},
        {test_hf_config, ", \"" RK_KNOB_AUX_LOSS "\": 0.25", RK_KNOB_AUX_LOSS "=0.25"},
    };
    struct test_cluster cluster;

    (void)state;
    open_workers(&cluster);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *options = options_of(cases[i].hf_config, cases[i].more);
        struct rk_job *jobs[NUM_DP];

        test_cluster_call(&cluster, "actor", "init_model", options, NULL, jobs);
        for (int32_t rank = 0; rank < NUM_DP; rank++) {
            assert_fails(rk_status_clone(jobs[rank]->status), RK_INVALID_ARGUMENT, cases[i].names);
            rk_job_destroy(jobs[rank]);
        }
        rk_free(options);
    }
    test_cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates_report_routers),
        cmocka_unit_test(test_dense_models_report_none),
        cmocka_unit_test(test_losses_are_reported_by_their_names),
        cmocka_unit_test(test_bad_values_are_refused),
    };

    return cmocka_run_group_tests_name("worker_router", tests, NULL, NULL);
}
