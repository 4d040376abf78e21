/* update_weights: a rollout with a separate mesh receives the actor's weights; errors are returned on the
 * ranks of both. */
#include "tests/unit/worker/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

#define PROMPT   4
#define RESPONSE 6
#define ROWS     3

/* Small passes, so that the buckets determine a rank's planned memory. */
#define ROLLOUT \
    "\"rollout.max_num_seqs\": 1, \"rollout.max_model_len\": 16, \"rollout.max_num_batched_tokens\": 16"
#define GENERATE "{\"response_length\": 6, \"do_sample\": false, \"ignore_eos\": true}"

static const int32_t actor_ranks[] = {0, 1}, rollout_ranks[] = {2};

/* Rank 3 has no part. */
static const struct test_mesh apart[] = {
    {"actor", {.tp = 2, .num_ranks = 2, .ranks = actor_ranks}},
    {"rollout", {.num_ranks = 1, .ranks = rollout_ranks}},
};
static const struct test_mesh together[] = {{"actor", {.tp = 2}}, {"rollout", {.tp = 1, .dp = 2}}};
static const struct test_mesh equal[] = {{"actor", {0}}, {"rollout", {0}}};

static void destroy_all(const struct test_cluster *cluster, struct rk_job **jobs)
{
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        rk_job_destroy(jobs[rank]);
}

static void open_roles(struct test_cluster *cluster, int32_t num_ranks, const struct test_mesh *meshes)
{
    test_cluster_open(cluster, num_ranks, NULL);
    test_cluster_configure(cluster, 1, meshes, 2);
    test_cluster_init_model(cluster, "actor", "\"megatron.seed\": 1");
    test_cluster_init_model(cluster, "rollout", "\"megatron.seed\": 2, " ROLLOUT);
}

/* Generates greedy tokens on the rollout's first rank. */
static void generate(struct test_cluster *cluster, int32_t rank, int64_t *tokens)
{
    struct rk_batch *inputs[TEST_MAX_WORKERS] = {NULL};
    struct rk_job *jobs[TEST_MAX_WORKERS];

    for (int32_t i = 0; i < cluster->num_ranks; i++)
        inputs[i] = test_prompts(ROWS, PROMPT, 0);
    test_cluster_call(cluster, "rollout", "generate_sequences", GENERATE, inputs, jobs);
    for (int32_t i = 0; i < cluster->num_ranks; i++)
        assert_ok(rk_status_clone(jobs[i]->status));
    memcpy(tokens, rk_column_values(rk_batch_find(jobs[rank]->call.output, "responses")),
           ROWS * RESPONSE * sizeof(*tokens));
    destroy_all(cluster, jobs);
}

/* Generates with a rollout that shares the weights of an actor with this seed. */
static void generate_shared(int seed, int64_t *tokens)
{
    char *options = rk_format("\"megatron.seed\": %d", seed);
    struct test_cluster cluster;

    test_cluster_open(&cluster, 1, NULL);
    test_cluster_configure(&cluster, 1, equal, 2);
    test_cluster_init_model(&cluster, "actor", options);
    rk_job_destroy(test_call_ok(&cluster, "rollout", "init_model",
                                "{\"share_weights_of\": \"actor\", " ROLLOUT "}", NULL));
    generate(&cluster, 0, tokens);
    test_cluster_close(&cluster);
    rk_free(options);
}

static int64_t int_at(const struct rk_job *job, const char *path)
{
    return rk_json_as_int(rk_json_find_path(rk_batch_meta(job->call.output), path), -1);
}

/* Returns the bytes that were received; *copied those that were copied within ranks. */
static int64_t update(struct test_cluster *cluster, int64_t *copied)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];
    int64_t sent = 0, received = 0;

    *copied = 0;
    test_cluster_call(cluster, "rollout", "update_weights", "{}", NULL, jobs);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        assert_ok(rk_status_clone(jobs[rank]->status));
        if (!jobs[rank]->call.output)
            continue;
        assert_int_equal(int_at(jobs[rank], "weight_version"), 0);
        sent += int_at(jobs[rank], "sent_bytes");
        received += int_at(jobs[rank], "received_bytes");
        *copied += int_at(jobs[rank], "copied_bytes");
        assert_true(test_metric(jobs[rank], "perf/update_weights_bytes") ==
                    (double)int_at(jobs[rank], "received_bytes"));
    }
    assert_int_equal(sent, received);
    destroy_all(cluster, jobs);
    return received;
}

/* Checks that the roles' memory equals their plans and that no pass needed more. */
static void check_memory(struct test_cluster *cluster, const char *role)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];

    test_cluster_call(cluster, role, "memory_report", "{}", NULL, jobs);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        assert_ok(rk_status_clone(jobs[rank]->status));
        assert_int_equal(int_at(jobs[rank], "overflows"), 0);
        assert_int_equal(int_at(jobs[rank], "held.activations"), int_at(jobs[rank], "planned.activations"));
    }
    destroy_all(cluster, jobs);
}

/* f32 elements of the tiny model. */
static int64_t model_bytes(void)
{
    const int64_t hidden = 32, intermediate = 48, kv = 16, vocab = 61;
    int64_t layer = 2 * hidden * hidden + 2 * kv * hidden + 3 * intermediate * hidden + 2 * hidden;

    return (int64_t)sizeof(float) * (2 * layer + 2 * vocab * hidden + hidden);
}

/* Goal: a rollout on a separate rank generates the same tokens as one that shares the actor's weights. */
static void test_rollout_elsewhere_generates_with_the_weights_of_the_actor(void **state)
{
    int64_t expected[ROWS * RESPONSE], others[ROWS * RESPONSE], tokens[ROWS * RESPONSE], copied;
    struct test_cluster cluster;

    (void)state;
    generate_shared(1, expected);
    generate_shared(2, others);
    assert_memory_not_equal(expected, others, sizeof(expected));
    open_roles(&cluster, 4, apart);
    generate(&cluster, 2, tokens);
    assert_memory_equal(tokens, others, sizeof(tokens));
    assert_int_equal(update(&cluster, &copied), model_bytes());
    assert_int_equal(copied, 0);
    generate(&cluster, 2, tokens);
    assert_memory_equal(tokens, expected, sizeof(tokens));
    check_memory(&cluster, "actor");
    check_memory(&cluster, "rollout");
    test_cluster_close(&cluster);
}

/* Goal: the same on the actor's own ranks, where half of the weights are not transferred. */
static void test_rollout_of_other_layout_generates_with_the_weights_of_the_actor(void **state)
{
    int64_t expected[ROWS * RESPONSE], tokens[ROWS * RESPONSE], copied, received;
    struct test_cluster cluster;

    (void)state;
    generate_shared(1, expected);
    open_roles(&cluster, 2, together);
    received = update(&cluster, &copied);
    assert_int_equal(received + copied, 2 * model_bytes());
    assert_in_range(received, model_bytes() / 2, model_bytes());
    for (int32_t rank = 0; rank < 2; rank++) {
        generate(&cluster, rank, tokens);
        assert_memory_equal(tokens, expected, sizeof(tokens));
    }
    check_memory(&cluster, "actor");
    check_memory(&cluster, "rollout");
    test_cluster_close(&cluster);
}

static void assert_all_fail(struct test_cluster *cluster, const char *method, const char *options,
                            rk_code_t code, const char *reason, const char *text)
{
    struct rk_batch *inputs[TEST_MAX_WORKERS] = {NULL};
    struct rk_job *jobs[TEST_MAX_WORKERS];

    if (strcmp(method, "generate_sequences") == 0) {
        for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
            inputs[rank] = test_prompts(ROWS, PROMPT, 0);
    }
    test_cluster_call(cluster, "rollout", method, options, inputs, jobs);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        assert_string_equal(rk_status_reason(jobs[rank]->status), reason);
        assert_fails(rk_status_clone(jobs[rank]->status), code, text);
    }
    destroy_all(cluster, jobs);
}

static void test_shared_weights_are_not_moved(void **state)
{
    struct test_cluster cluster;
    int64_t copied;

    (void)state;
    test_cluster_open(&cluster, 1, NULL);
    test_cluster_configure(&cluster, 1, equal, 2);
    test_cluster_init_model(&cluster, "actor", "");
    rk_job_destroy(test_call_ok(&cluster, "rollout", "init_model",
                                "{\"share_weights_of\": \"actor\", " ROLLOUT "}", NULL));
    assert_int_equal(update(&cluster, &copied), 0);
    assert_int_equal(copied, 0);
    assert_all_fail(
        &cluster, "init_model", "{\"share_weights_of\": \"actor\", \"rollout.load_format\": \"dummy\"}",
        RK_INVALID_ARGUMENT, "", "rollout.load_format=dummy: expected auto with share_weights_of");
    test_cluster_close(&cluster);
}

/* Goal: a rollout that is built without weights refuses to generate until it has the actor's. */
static void test_rollout_without_weights_waits_for_them(void **state)
{
    int64_t expected[ROWS * RESPONSE], tokens[ROWS * RESPONSE], copied;
    struct test_cluster cluster;

    (void)state;
    generate_shared(1, expected);
    test_cluster_open(&cluster, 2, NULL);
    test_cluster_configure(&cluster, 1, together, 2);
    test_cluster_init_model(&cluster, "actor", "\"megatron.seed\": 1");
    test_cluster_init_model(&cluster, "rollout", "\"rollout.load_format\": \"dummy\", " ROLLOUT);
    assert_all_fail(&cluster, "generate_sequences", GENERATE, RK_FAILED_PRECONDITION, "NO_MODEL",
                    "role 'rollout' was built without weights");
    update(&cluster, &copied);
    generate(&cluster, 0, tokens);
    assert_memory_equal(tokens, expected, sizeof(tokens));
    assert_all_fail(&cluster, "init_model", "{\"model.hf_config\": {}, \"rollout.load_format\": \"fast\"}",
                    RK_INVALID_ARGUMENT, "", "rollout.load_format=fast: expected auto or dummy");
    test_cluster_close(&cluster);
}

static void test_role_without_model_is_named_on_all_ranks(void **state)
{
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 2, NULL);
    test_cluster_configure(&cluster, 1, together, 2);
    assert_all_fail(&cluster, "update_weights", "{}", RK_FAILED_PRECONDITION, "NO_MODEL",
                    "role 'actor' has no model");
    test_cluster_init_model(&cluster, "actor", "");
    assert_all_fail(&cluster, "update_weights", "{}", RK_FAILED_PRECONDITION, "NO_MODEL",
                    "role 'rollout' has no model");
    test_cluster_close(&cluster);
}

static void test_without_actor_there_is_nothing_to_move(void **state)
{
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 1, NULL);
    test_cluster_configure(&cluster, 1, &equal[1], 1);
    assert_all_fail(&cluster, "update_weights", "{}", RK_FAILED_PRECONDITION, "NOT_CONFIGURED",
                    "role 'actor', which has no mesh");
    test_cluster_close(&cluster);
}

#ifdef RK_FAULTS
/* Goal: a rollout with partially updated weights refuses to generate until an update succeeds. */
static void test_rollout_of_a_broken_update_does_not_generate(void **state)
{
    int64_t expected[ROWS * RESPONSE], tokens[ROWS * RESPONSE], copied;
    struct test_cluster cluster;

    (void)state;
    generate_shared(1, expected);
    open_roles(&cluster, 2, together);
    setenv("RANKD_FAULTS", "reshard.unpack=fail", 1);
    assert_all_fail(&cluster, "update_weights", "{}", RK_DATA_LOSS, "FINGERPRINT", "fingerprint");
    unsetenv("RANKD_FAULTS");
    assert_all_fail(&cluster, "generate_sequences", GENERATE, RK_FAILED_PRECONDITION, "NO_MODEL",
                    "role 'rollout': update_weights was interrupted");
    update(&cluster, &copied);
    generate(&cluster, 1, tokens);
    assert_memory_equal(tokens, expected, sizeof(tokens));
    test_cluster_close(&cluster);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollout_elsewhere_generates_with_the_weights_of_the_actor),
        cmocka_unit_test(test_rollout_of_other_layout_generates_with_the_weights_of_the_actor),
        cmocka_unit_test(test_shared_weights_are_not_moved),
        cmocka_unit_test(test_rollout_without_weights_waits_for_them),
        cmocka_unit_test(test_role_without_model_is_named_on_all_ranks),
        cmocka_unit_test(test_without_actor_there_is_nothing_to_move),
#ifdef RK_FAULTS
        cmocka_unit_test(test_rollout_of_a_broken_update_does_not_generate),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
