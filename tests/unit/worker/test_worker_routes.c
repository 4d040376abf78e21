/* Router replay on one rank, through jobs: the column routed_experts from the rollout and from
 * compute_log_prob, its use by log-probs and updates, and refusals of columns that are missing or of another
 * model. */
#include "tests/unit/worker/cluster.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

#define PROMPT   5
#define RESPONSE 7
#define SEQUENCE (PROMPT + RESPONSE)
#define ROWS     6
#define LAYERS   2
#define TOP_K    2
#define EXPERTS  6
#define WIDTH    (LAYERS * TOP_K)

#define MODEL                                                                                              \
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 32, \"num_hidden_layers\": 3,"                       \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 24,"                  \
    " \"vocab_size\": 67, \"max_position_embeddings\": 64, \"initializer_range\": 0.15,"                   \
    " \"moe_intermediate_size\": 24, \"num_experts\": 6, \"num_experts_per_tok\": 2, \"mlp_only_layers\":" \
    " [1]}"
#define INIT(role_options) \
    "{\"model.hf_config\": " MODEL ", \"numerics\": \"strict\", \"optim.lr\": 0.01, " role_options "}"
#define LIMITS   "\"ppo_max_token_len_per_gpu\": 24, \"log_prob_max_token_len_per_gpu\": 24"
#define MODE(m)  "\"megatron.router_replay.mode\": \"" m "\""
#define CAPTURES "\"rollout.enable_rollout_routing_replay\": true"
#define ROLLOUT \
    "{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 4, \"rollout.max_model_len\": 64, "
#define GENERATED "{\"response_length\": 7, \"pad_token_id\": 1, \"eos_token_id\": [10, 20, 30, 40, 50]}"

static const struct test_mesh meshes[] = {{"actor", {0}}, {"rollout", {0}}, {"ref", {0}}};
static const char *const token_columns[] = {"input_ids", "attention_mask", "position_ids", "responses", NULL};
static const char *const routed_columns[] = {"input_ids", "attention_mask", "position_ids",
                                             "responses", "routed_experts", NULL};

static void open_cluster(struct test_cluster *cluster, const char *actor)
{
    test_cluster_open(cluster, 1, NULL);
    test_cluster_configure(cluster, 1, meshes, RK_ARRAY_LEN(meshes));
    rk_job_destroy(test_call_ok(cluster, "actor", "init_model", actor, NULL));
}

static struct rk_batch *take_output(struct rk_job *job)
{
    struct rk_batch *output = job->call.output;

    job->call.output = NULL;
    rk_job_destroy(job);
    return output;
}

static struct rk_batch *generate(struct test_cluster *cluster, const char *rollout, const char *options)
{
    rk_job_destroy(test_call_ok(cluster, "rollout", "init_model", rollout, NULL));
    return take_output(
        test_call_ok(cluster, "rollout", "generate_sequences", options, test_prompts(ROWS, PROMPT, 0)));
}

static struct rk_batch *generate_routed(struct test_cluster *cluster)
{
    return generate(cluster, ROLLOUT CAPTURES "}", GENERATED);
}

static const int16_t *routes_of(const struct rk_batch *batch)
{
    const void *data;
    int64_t shape[4];

    assert_ok(rk_batch_get_dense(batch, "routed_experts", RK_DTYPE_I16, 4, shape, &data));
    assert_int_equal(shape[1], SEQUENCE);
    assert_int_equal(shape[2], LAYERS);
    assert_int_equal(shape[3], TOP_K);
    return data;
}

static const int64_t *mask_of(const struct rk_batch *batch)
{
    const void *data;
    int64_t shape[2];

    assert_ok(rk_batch_get_dense(batch, "attention_mask", RK_DTYPE_I64, 2, shape, &data));
    return data;
}

static bool is_last(const int64_t *mask, int64_t cell)
{
    return mask[cell] && ((cell + 1) % SEQUENCE == 0 || !mask[cell + 1]);
}

static const float *log_probs_of(const struct rk_batch *batch, const char *name)
{
    const void *data;
    int64_t shape[2];

    assert_ok(rk_batch_get_dense(batch, name, RK_DTYPE_F32, 2, shape, &data));
    return data;
}

/* A call over these columns of the samples, in micro-batches of two rows. */
static struct rk_job *pass(struct test_cluster *cluster, const char *role, const char *method,
                           const struct rk_batch *samples, const char *const *columns)
{
    struct rk_batch *input;
    struct rk_job *job;

    assert_ok(rk_batch_select(&input, samples, columns, NULL));
    job = test_method_job(role, method, "{}", input);
    test_plan(job, &input, 1, NULL, 0, 2);
    return test_cluster_run(cluster, 0, job);
}

static struct rk_job *pass_ok(struct test_cluster *cluster, const char *role, const char *method,
                              const struct rk_batch *samples, const char *const *columns)
{
    struct rk_job *job = pass(cluster, role, method, samples, columns);

    assert_ok(rk_status_clone(job->status));
    return job;
}

static struct rk_job *update(struct test_cluster *cluster, const struct rk_batch *samples, bool has_routes)
{
    static const char *const columns[] = {"input_ids",     "attention_mask",    "position_ids",   "responses",
                                          "response_mask", "rollout_log_probs", "routed_experts", NULL};
    const int64_t shape[] = {ROWS, RESPONSE};
    struct rk_batch *input;
    struct rk_job *job;
    void *data;

    assert_ok(rk_batch_select(&input, samples, columns, NULL));
    if (!has_routes)
        rk_batch_remove(input, "routed_experts");
    assert_ok(rk_batch_put(input, "old_log_probs", rk_batch_find(input, "rollout_log_probs")));
    rk_batch_remove(input, "rollout_log_probs");
    assert_ok(rk_batch_add_dense(input, "advantages", RK_DTYPE_F32, 2, shape, &data));
    for (int64_t i = 0; i < ROWS * RESPONSE; i++)
        ((float *)data)[i] = i / RESPONSE % 2 == 0 ? 1.0F : -0.5F;
    job = test_method_job("actor", "update_actor", "{}", input);
    test_plan(job, &input, 1, "response_mask", 2, 1);
    return test_cluster_run(cluster, 0, job);
}

/* A copy whose column has these sizes and values: those of the samples with `value` in one place. */
static struct rk_batch *with_routes(const struct rk_batch *samples, const int64_t *shape, int64_t at,
                                    int16_t value)
{
    struct rk_batch *copy;
    void *data;

    assert_ok(rk_batch_select(&copy, samples, NULL, NULL));
    rk_batch_remove(copy, "routed_experts");
    assert_ok(rk_batch_add_dense(copy, "routed_experts", RK_DTYPE_I16, 4, shape, &data));
    if (shape[2] * shape[3] == WIDTH) {
        memcpy(data, routes_of(samples), (size_t)(ROWS * SEQUENCE * WIDTH) * sizeof(int16_t));
        ((int16_t *)data)[at] = value;
    }
    return copy;
}

/* Goal: the rollout's column has distinct experts on every real token but the last of a row, and 0 elsewhere;
 * it is absent without capture, and when the call does not ask for it. */
static void test_generate_returns_routes(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *batch;
    const int16_t *routes;
    const int64_t *mask;

    (void)state;
    open_cluster(&cluster, INIT(LIMITS));
    batch = generate(&cluster, ROLLOUT "\"rollout.enforce_eager\": false}", GENERATED);
    assert_null(rk_batch_find(batch, "routed_experts"));
    rk_batch_destroy(batch);
    batch = generate(&cluster, ROLLOUT CAPTURES "}", "{\"response_length\": 7, \"routed_experts\": false}");
    assert_null(rk_batch_find(batch, "routed_experts"));
    rk_batch_destroy(batch);
    batch = generate_routed(&cluster);
    routes = routes_of(batch);
    mask = mask_of(batch);
    for (int64_t i = 0; i < ROWS * SEQUENCE; i++) {
        for (int64_t k = i * WIDTH; k < (i + 1) * WIDTH; k += TOP_K) {
            if (mask[i] && !is_last(mask, i))
                assert_true(routes[k] != routes[k + 1]);
            else
                assert_true(routes[k] == 0 && routes[k + 1] == 0);
            assert_in_range(routes[k], 0, EXPERTS - 1);
            assert_in_range(routes[k + 1], 0, EXPERTS - 1);
        }
    }
    rk_batch_destroy(batch);
    test_cluster_close(&cluster);
}

/* Goal: with R3 the pass takes the rollout's experts: the same bits with its column in strict numerics,
 * others with another column, and the differences are counted; reference and update take it too. */
static void test_r3_replays_the_rollout(void **state)
{
    static const int64_t shape[] = {ROWS, SEQUENCE, LAYERS, TOP_K};
    struct rk_batch *samples, *other;
    struct test_cluster cluster;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, INIT(LIMITS ", " MODE("R3")));
    rk_job_destroy(test_call_ok(
        &cluster, "ref", "init_model",
        INIT("\"megatron.forward_only\": true, \"log_prob_max_token_len_per_gpu\": 24, " MODE("R3")), NULL));
    samples = generate_routed(&cluster);
    job = pass_ok(&cluster, "actor", "compute_log_prob", samples, routed_columns);
    assert_memory_equal(log_probs_of(job->call.output, "old_log_probs"),
                        log_probs_of(samples, "rollout_log_probs"), ROWS * RESPONSE * sizeof(float));
    assert_null(rk_batch_find(job->call.output, "routed_experts"));
    assert_true(test_metric(job, "routes/tokens") > ROWS);
    assert_true(test_metric(job, "routes/layers") == LAYERS * test_metric(job, "routes/tokens"));
    assert_true(test_metric(job, "routes/other_tokens") == 0.0);
    assert_true(test_metric(job, "routes/other_layers") == 0.0);
    assert_true(test_metric(job, "actor/memory_overflows") == 0.0);
    rk_job_destroy(job);

    /* Another expert for the last token of the first prompt, in its last layer: of this layer only that token
     * differs, and nothing behind it has a router. */
    {
        int64_t at = ((int64_t)PROMPT * WIDTH) - TOP_K;
        int16_t taken = routes_of(samples)[at + 1], value = (int16_t)((routes_of(samples)[at] + 1) % EXPERTS);

        other = with_routes(samples, shape, at, value == taken ? (int16_t)((value + 1) % EXPERTS) : value);
    }
    job = pass_ok(&cluster, "actor", "compute_log_prob", other, routed_columns);
    assert_memory_not_equal(log_probs_of(job->call.output, "old_log_probs"),
                            log_probs_of(samples, "rollout_log_probs"), ROWS * RESPONSE * sizeof(float));
    assert_true(test_metric(job, "routes/other_tokens") == 1.0);
    assert_true(test_metric(job, "routes/other_layers") == 1.0);
    rk_job_destroy(job);
    job = pass_ok(&cluster, "ref", "compute_ref_log_prob", other, routed_columns);
    assert_memory_not_equal(log_probs_of(job->call.output, "ref_log_prob"),
                            log_probs_of(samples, "rollout_log_probs"), ROWS * RESPONSE * sizeof(float));
    rk_job_destroy(job);
    job = update(&cluster, samples, true);
    assert_ok(rk_status_clone(job->status));
    assert_true(test_metric(job, "actor/grad_norm") > 0.0);
    rk_job_destroy(job);
    job = pass_ok(&cluster, "actor", "compute_log_prob", samples, routed_columns);
    assert_true(test_metric(job, "actor/memory_overflows") == 0.0);
    rk_job_destroy(job);
    rk_batch_destroy(samples);
    rk_batch_destroy(other);
    test_cluster_close(&cluster);
}

/* Goal: with R2 compute_log_prob returns its experts, which in strict numerics are those of the rollout, and
 * of the last token too; the update needs the column. */
static void test_r2_records_compute_log_prob(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *samples;
    const int16_t *rollout, *actor;
    const int64_t *mask;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, INIT(LIMITS ", " MODE("R2")));
    samples = generate_routed(&cluster);
    job = pass_ok(&cluster, "actor", "compute_log_prob", samples, token_columns);
    rollout = routes_of(samples);
    actor = routes_of(job->call.output);
    mask = mask_of(samples);
    for (int64_t i = 0; i < ROWS * SEQUENCE; i++) {
        if (is_last(mask, i))
            assert_true(actor[i * WIDTH] != actor[i * WIDTH + 1]);
        else
            assert_memory_equal(actor + i * WIDTH, rollout + i * WIDTH, WIDTH * sizeof(*actor));
    }
    assert_true(test_metric(job, "actor/memory_overflows") == 0.0);
    rk_batch_remove(samples, "routed_experts");
    assert_ok(rk_batch_put(samples, "routed_experts", rk_batch_find(job->call.output, "routed_experts")));
    rk_job_destroy(job);
    job = update(&cluster, samples, true);
    assert_ok(rk_status_clone(job->status));
    rk_job_destroy(job);
    job = update(&cluster, samples, false);
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, "routed_experts");
    rk_job_destroy(job);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

/* Goal: without replay a pass that gets the column only compares it. */
static void test_disabled_compares(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *samples;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, INIT(LIMITS ", \"megatron.router_replay.compares\": true"));
    samples = generate_routed(&cluster);
    job = pass_ok(&cluster, "actor", "compute_log_prob", samples, routed_columns);
    assert_true(test_metric(job, "routes/tokens") > 0.0);
    assert_true(test_metric(job, "routes/other_tokens") == 0.0);
    assert_true(test_metric(job, "actor/memory_overflows") == 0.0);
    rk_job_destroy(job);
    job = pass_ok(&cluster, "actor", "compute_log_prob", samples, token_columns);
    assert_true(isnan(test_metric(job, "routes/tokens")));
    rk_job_destroy(job);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

/* Goal: what is wrong with a column is named, and the role can go on. */
static void test_bad_routes_are_named(void **state)
{
    static const struct {
        const char *text;
        int64_t shape[4], at;
        int16_t value;
    } cases[] = {
        {"routed_experts", {ROWS, SEQUENCE, LAYERS + 1, TOP_K}, 0, 0},
        {"routed_experts", {ROWS, SEQUENCE, LAYERS, TOP_K - 1}, 0, 0},
        {"routed_experts[2, 4, 1, 0]",
         {ROWS, SEQUENCE, LAYERS, TOP_K},
         (2 * SEQUENCE + 4) * WIDTH + 2,
         EXPERTS},
        {"routed_experts[0, 4, 0, 1]", {ROWS, SEQUENCE, LAYERS, TOP_K}, 4 * WIDTH + 1, -1},
    };
    struct test_cluster cluster;
    struct rk_batch *samples, *bad;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, INIT(LIMITS ", " MODE("R3")));
    samples = generate_routed(&cluster);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        bad = with_routes(samples, cases[i].shape, cases[i].at, cases[i].value);
        job = pass(&cluster, "actor", "compute_log_prob", bad, routed_columns);
        assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, cases[i].text);
        rk_job_destroy(job);
        rk_batch_destroy(bad);
    }
    job = pass(&cluster, "actor", "compute_log_prob", samples, token_columns);
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, "routed_experts");
    rk_job_destroy(job);
    rk_job_destroy(pass_ok(&cluster, "actor", "compute_log_prob", samples, routed_columns));
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

/* Goal: an expert twice in a layer, as in the zeros of a token that was never computed, is refused except at
 * the end of a row. */
static void test_repeated_experts_are_named(void **state)
{
    static const int64_t shape[] = {ROWS, SEQUENCE, LAYERS, TOP_K};
    int64_t at = (SEQUENCE + PROMPT) * WIDTH; /* the first response token of row 1 */
    struct rk_batch *samples, *bad;
    struct test_cluster cluster;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, INIT(LIMITS ", " MODE("R3")));
    samples = generate(&cluster, ROLLOUT CAPTURES "}", "{\"response_length\": 7, \"ignore_eos\": true}");
    bad = with_routes(samples, shape, at, routes_of(samples)[at + 1]);
    job = pass(&cluster, "actor", "compute_log_prob", bad, routed_columns);
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, "routed_experts[1, 5, 0, 1]");
    rk_job_destroy(job);
    rk_batch_destroy(bad);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

/* Goal: a model without experts is refused with the key, before it has memory. */
static void test_dense_model_is_refused(void **state)
{
    static const struct {
        const char *options, *text;
    } cases[] = {
        {MODE("R3"), "megatron.router_replay.mode=R3"},
        {MODE("R2"), "megatron.router_replay.mode=R2"},
        {"\"megatron.router_replay.compares\": true", "megatron.router_replay.compares=true"},
        {"\"megatron.router_replay.compares\": true", "rollout.enable_rollout_routing_replay=true"},
        {"\"plan_only\": true, " MODE("R3"), "megatron.router_replay.mode=R3"},
    };
    struct test_cluster cluster;
    struct rk_job *job;

    (void)state;
    test_cluster_open(&cluster, 1, NULL);
    test_cluster_configure(&cluster, 1, meshes, RK_ARRAY_LEN(meshes));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *options = test_init_options(cases[i].options);

        job = test_cluster_run(&cluster, 0, test_method_job("actor", "init_model", options, NULL));
        assert_fails(rk_status_clone(job->status), RK_FAILED_PRECONDITION, cases[i].text);
        rk_job_destroy(job);
        rk_free(options);
    }
    job = test_cluster_run(&cluster, 0, test_method_job("actor", "init_model", INIT(MODE("R4")), NULL));
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, "megatron.router_replay.mode=R4");
    rk_job_destroy(job);
    test_cluster_init_model(&cluster, "actor", "\"optim.lr\": 0.01");
    job = test_cluster_run(&cluster, 0, test_method_job("rollout", "init_model", ROLLOUT CAPTURES "}", NULL));
    assert_fails(rk_status_clone(job->status), RK_FAILED_PRECONDITION,
                 "rollout.enable_rollout_routing_replay=true");
    rk_job_destroy(job);
    test_cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_returns_routes),     cmocka_unit_test(test_r3_replays_the_rollout),
        cmocka_unit_test(test_r2_records_compute_log_prob), cmocka_unit_test(test_disabled_compares),
        cmocka_unit_test(test_bad_routes_are_named),        cmocka_unit_test(test_repeated_experts_are_named),
        cmocka_unit_test(test_dense_model_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
