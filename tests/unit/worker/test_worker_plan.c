/* plan_only: plans of all roles before any of them is built. They equal what the roles allocate, and planning
 * allocates nothing. On RK_TEST_DEVICE; the tests of several ranks are on the CPU. */
#include "tests/unit/worker/cluster.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "tests/support/device.h"

/* Less than any test device has, so that the free memory depends on this process only. */
#define LIMIT_BYTES ((uint64_t)512 << 20)
#define NUM_ROLES   4

static const struct test_mesh one_rank[NUM_ROLES] = {
    {"actor", {0}}, {"ref", {0}}, {"critic", {0}}, {"rollout", {0}}};
static const struct test_mesh four_ranks[NUM_ROLES] = {
    {"actor", {.tp = 2}}, {"ref", {.tp = 4}}, {"critic", {.tp = 1}}, {"rollout", {.tp = 2}}};

/* Options of init_model in addition to the model, in the order in which a driver builds the roles. */
static const char *const role_options[NUM_ROLES] = {
    "\"ppo_max_token_len_per_gpu\": 200, \"log_prob_max_token_len_per_gpu\": 300",
    "\"megatron.forward_only\": true, \"log_prob_max_token_len_per_gpu\": 250",
    "\"ppo_max_token_len_per_gpu\": 170, \"log_prob_max_token_len_per_gpu\": 90",
    "\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 64, \"rollout.max_model_len\": 64,"
    " \"rollout.max_num_batched_tokens\": 64, \"rollout.gpu_memory_utilization\": 0.5",
};
#define ROLLOUT (NUM_ROLES - 1)

static bool is_on_cpu(void)
{
    return !rk_env("RK_TEST_DEVICE") || strcmp(rk_env("RK_TEST_DEVICE"), "cpu") == 0;
}

static void open_cluster(struct test_cluster *cluster, int32_t num_ranks, const struct test_mesh *meshes,
                         uint64_t limit_bytes)
{
    const struct rk_worker_config config = {.device = rk_env("RK_TEST_DEVICE"),
                                            .device_memory_limit_bytes = limit_bytes};

    test_cluster_open(cluster, num_ranks, &config);
    test_cluster_configure(cluster, 1, meshes, NUM_ROLES);
}

/* The options with which the driver calls init_model; rk_free it. */
static char *options_of(int role)
{
    return role == ROLLOUT ? rk_format("{%s}", role_options[role]) : test_init_options(role_options[role]);
}

/* options_of with plan_only after the plan that left `rooms`; NULL: the first plan. */
static char *plan_options_of(int role, const struct rk_json *rooms)
{
    char *init = options_of(role), *owner = options_of(0),
         *room = rooms ? rk_json_dump(rooms, 0, false) : NULL;
    struct rk_str text = {0};

    init[strlen(init) - 1] = '\0';
    rk_str_appendf(&text, "%s, \"plan_only\": true, \"plan_room\": %s", init, room ? room : "null");
    if (role == ROLLOUT)
        rk_str_appendf(&text, ", \"plan_owner\": %s", owner);
    rk_str_append(&text, "}");
    rk_free(init);
    rk_free(owner);
    rk_free(room);
    return rk_str_take(&text);
}

/* Makes a call on all ranks, which must succeed, and returns its metas. */
static void call_all(struct test_cluster *cluster, const char *role, const char *method, const char *options,
                     struct rk_json *metas[TEST_MAX_WORKERS])
{
    struct rk_job *jobs[TEST_MAX_WORKERS];

    test_cluster_call(cluster, role, method, options, NULL, jobs);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        assert_ok(rk_status_clone(jobs[rank]->status));
        metas[rank] = jobs[rank]->call.output ? rk_json_clone(rk_batch_meta(jobs[rank]->call.output)) : NULL;
        rk_job_destroy(jobs[rank]);
    }
}

static void free_metas(struct rk_json *metas[TEST_MAX_WORKERS], int32_t num_ranks)
{
    for (int32_t rank = 0; rank < num_ranks; rank++)
        rk_json_free(metas[rank]);
}

static int64_t int_at(const struct rk_json *meta, const char *path)
{
    return rk_json_as_int(rk_json_find_path(meta, path), INT64_MIN);
}

/* Plans of all roles, each after the previous ones: plans[role][rank]. */
static void plan_all(struct test_cluster *cluster, struct rk_json *plans[NUM_ROLES][TEST_MAX_WORKERS])
{
    struct rk_json *rooms = NULL;

    for (int role = 0; role < NUM_ROLES; role++) {
        char *options = plan_options_of(role, rooms);

        call_all(cluster, one_rank[role].role, "init_model", options, plans[role]);
        rk_free(options);
        rk_json_free(rooms);
        rooms = rk_json_new_array();
        for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
            rk_json_append(rooms, rk_json_clone(rk_json_find(plans[role][rank], "room_after")));
    }
    rk_json_free(rooms);
}

static void free_plans(struct rk_json *plans[NUM_ROLES][TEST_MAX_WORKERS], int32_t num_ranks)
{
    for (int role = 0; role < NUM_ROLES; role++)
        free_metas(plans[role], num_ranks);
}

/* The visible state of the roles and the device. */
static void get_snapshots(struct test_cluster *cluster, struct rk_worker_snapshot *out)
{
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        rk_worker_get_snapshot(cluster->workers[rank], &out[rank]);
}

static void assert_unchanged(struct test_cluster *cluster, const struct rk_worker_snapshot *before,
                             rk_role_state_t state)
{
    struct rk_worker_snapshot after[TEST_MAX_WORKERS];

    get_snapshots(cluster, after);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        assert_int_equal(after[rank].device_allocated_bytes, before[rank].device_allocated_bytes);
        for (int32_t i = 0; i < after[rank].num_roles; i++) {
            assert_int_equal(after[rank].roles[i].state, state);
            assert_int_equal(after[rank].roles[i].weight_version, before[rank].roles[i].weight_version);
        }
    }
}

/* Builds the roles and compares each with its plan. */
static void init_all(struct test_cluster *cluster, struct rk_json *plans[NUM_ROLES][TEST_MAX_WORKERS])
{
    for (int role = 0; role < NUM_ROLES; role++) {
        struct rk_json *metas[TEST_MAX_WORKERS];
        char *options = options_of(role);

        call_all(cluster, one_rank[role].role, "init_model", options, metas);
        free_metas(metas, cluster->num_ranks);
        call_all(cluster, one_rank[role].role, "memory_report", "{}", metas);
        for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
            const struct rk_json *plan = plans[role][rank], *report = metas[rank];

            print_message("%s, rank %d\n", one_rank[role].role, rank);
            assert_true(rk_json_equal(rk_json_find(plan, "planned"), rk_json_find(report, "planned")));
            assert_true(rk_json_as_bool(rk_json_find(plan, "fits"), false));
            assert_int_equal(int_at(plan, "planned.kv_cache"), int_at(report, "held.kv_cache"));
            assert_int_equal(int_at(plan, "room_after.free"), int_at(report, "device.free"));
            assert_int_equal(int_at(plan, "room_after.own"), int_at(report, "device.own"));
        }
        free_metas(metas, cluster->num_ranks);
        rk_free(options);
    }
}

static void assert_same_plans(struct rk_json *a[NUM_ROLES][TEST_MAX_WORKERS],
                              struct rk_json *b[NUM_ROLES][TEST_MAX_WORKERS], int32_t num_ranks)
{
    for (int role = 0; role < NUM_ROLES; role++) {
        for (int32_t rank = 0; rank < num_ranks; rank++)
            assert_true(rk_json_equal(rk_json_find(a[role][rank], "planned"),
                                      rk_json_find(b[role][rank], "planned")));
    }
    for (int32_t rank = 0; rank < num_ranks; rank++)
        assert_int_equal(int_at(a[ROLLOUT][rank], "room_after.free"),
                         int_at(b[ROLLOUT][rank], "room_after.free"));
}

/* Goal: the plans of roles that are not built yet equal, item by item, init_model's plans and the device's
 * remaining memory, including a cache that takes a share of the rest. Planning again after the roles are
 * built gives the same answer. Planning changes no state. */
static void check_plans(int32_t num_ranks, const struct test_mesh *meshes, uint64_t limit_bytes)
{
    struct rk_json *plans[NUM_ROLES][TEST_MAX_WORKERS], *again[NUM_ROLES][TEST_MAX_WORKERS];
    struct rk_worker_snapshot before[TEST_MAX_WORKERS];
    struct test_cluster cluster;

    open_cluster(&cluster, num_ranks, meshes, limit_bytes);
    get_snapshots(&cluster, before);
    plan_all(&cluster, plans);
    assert_unchanged(&cluster, before, RK_ROLE_STATE_EMPTY);
    assert_int_equal(int_at(plans[0][0], "given_back"), 0);

    init_all(&cluster, plans);
    get_snapshots(&cluster, before);
    plan_all(&cluster, again);
    assert_unchanged(&cluster, before, RK_ROLE_STATE_AWAKE);
    assert_same_plans(plans, again, num_ranks);
    assert_true(int_at(again[0][0], "given_back") > int_at(again[0][0], "planned.parameters"));
    free_plans(plans, num_ranks);
    free_plans(again, num_ranks);
    test_cluster_close(&cluster);
}

static void test_plan_only_equals_the_memory_of_roles(void **state)
{
    (void)state;
    check_plans(1, one_rank, LIMIT_BYTES);
}

static void test_plan_only_of_meshes_that_differ(void **state)
{
    (void)state;
    if (!is_on_cpu())
        rk_test_skip("four ranks would share one device");
    check_plans(4, four_ranks, LIMIT_BYTES);
}

/* Goal: the same for a cache that is smaller than its limits allow. Method: with exactly the memory in which
 * all roles fit with the largest cache, the rollout may take half of what the others leave. */
static void test_plan_only_of_a_cache_with_a_share(void **state)
{
    struct rk_json *plans[NUM_ROLES][TEST_MAX_WORKERS];
    struct test_cluster cluster;
    int64_t full_blocks, limit_bytes;

    (void)state;
    if (!is_on_cpu())
        rk_test_skip("elsewhere the second plan counts workspace that the last role left for the first");
    open_cluster(&cluster, 1, one_rank, LIMIT_BYTES);
    plan_all(&cluster, plans);
    full_blocks = int_at(plans[ROLLOUT][0], "num_kv_blocks");
    limit_bytes = (int64_t)LIMIT_BYTES - int_at(plans[ROLLOUT][0], "room_after.free");
    free_plans(plans, 1);
    test_cluster_close(&cluster);

    open_cluster(&cluster, 1, one_rank, (uint64_t)limit_bytes);
    plan_all(&cluster, plans);
    assert_in_range(int_at(plans[ROLLOUT][0], "num_kv_blocks"), 5, full_blocks - 1);
    free_plans(plans, 1);
    test_cluster_close(&cluster);
    check_plans(1, one_rank, (uint64_t)limit_bytes);
}
#define PLAN "\"ppo_max_token_len_per_gpu\": 2000, \"plan_only\": true"

static int64_t plan_activations(struct test_cluster *cluster, const char *more)
{
    char *init = test_init_options(more);
    struct rk_json *metas[TEST_MAX_WORKERS];
    int64_t bytes;

    call_all(cluster, "actor", "init_model", init, metas);
    bytes = int_at(metas[0], "planned.activations");
    free_metas(metas, cluster->num_ranks);
    rk_free(init);
    return bytes;
}

/* Goal: megatron.sequence_parallel takes effect in the model, and its default is true. Method: it divides
 * activations by tp. */
static void test_plan_only_counts_sequence_parallelism(void **state)
{
    struct test_cluster cluster;
    int64_t by_default, divided, whole;

    (void)state;
    if (!is_on_cpu())
        rk_test_skip("four ranks would share one device");
    open_cluster(&cluster, 4, four_ranks, LIMIT_BYTES);
    by_default = plan_activations(&cluster, PLAN);
    divided = plan_activations(&cluster, PLAN ", \"megatron.sequence_parallel\": true");
    whole = plan_activations(&cluster, PLAN ", \"megatron.sequence_parallel\": false");
    assert_int_equal(by_default, divided);
    assert_true(divided > 0);
    assert_true(divided < whole);
    test_cluster_close(&cluster);
}

/* Goal: a role that does not fit is planned as well, and so are the roles after it; missing memory is
 * negative. A smaller role can be built afterwards. */
static void test_plan_only_beyond_the_device(void **state)
{
    struct test_cluster cluster;
    struct rk_json *meta[TEST_MAX_WORKERS], *next[TEST_MAX_WORKERS];
    char *options, *room;

    (void)state;
    if (!is_on_cpu())
        rk_test_skip("only the CPU's operators hold no workspace");
    open_cluster(&cluster, 1, one_rank, 4 << 20);
    options = test_init_options("\"ppo_max_token_len_per_gpu\": 100000, \"plan_only\": true");
    call_all(&cluster, "actor", "init_model", options, meta);
    rk_free(options);
    assert_false(rk_json_as_bool(rk_json_find(meta[0], "fits"), true));
    assert_true(int_at(meta[0], "planned.total") > 4 << 20);
    assert_int_equal(int_at(meta[0], "room_after.free"),
                     int_at(meta[0], "room.free") - int_at(meta[0], "planned.total"));

    room = rk_json_dump(rk_json_find(meta[0], "room_after"), 0, false);
    options = rk_format("\"plan_only\": true, \"plan_room\": [%s]", room);
    rk_free(room);
    room = test_init_options(options);
    call_all(&cluster, "ref", "init_model", room, next);
    assert_false(rk_json_as_bool(rk_json_find(next[0], "fits"), true));
    assert_int_equal(int_at(next[0], "room_after.free"),
                     int_at(meta[0], "room_after.free") - int_at(next[0], "planned.total"));
    rk_free(options);
    rk_free(room);
    rk_json_free(next[0]);

    /* A rank without the previous roles has the whole device. */
    options = test_init_options("\"plan_only\": true, \"plan_room\": [null]");
    call_all(&cluster, "ref", "init_model", options, next);
    rk_free(options);
    assert_int_equal(int_at(next[0], "room.free"), int_at(meta[0], "room.free"));
    rk_json_free(meta[0]);
    rk_json_free(next[0]);
    test_cluster_init_model(&cluster, "actor", "");
    test_cluster_close(&cluster);
}

static void test_plan_only_bad_options_are_refused(void **state)
{
    static const struct {
        const char *role, *options, *message;
        rk_code_t code;
    } cases[] = {
        {"actor", "\"plan_room\": []", "plan_room: expected only with plan_only=true", RK_INVALID_ARGUMENT},
        {"actor", "\"plan_owner\": {}", "plan_owner: expected only with plan_only=true", RK_INVALID_ARGUMENT},
        {"actor", "\"plan_only\": true, \"plan_room\": []", "plan_room: expected a list of 1 rooms",
         RK_INVALID_ARGUMENT},
        {"actor",
         "\"plan_only\": true, \"plan_room\": [{\"free\": 1, \"own\": -1, \"scratch\": 0, \"kept\": 0}]",
         "plan_room.own", RK_INVALID_ARGUMENT},
        {"actor", "\"plan_only\": true, \"plan_room\": [7]", "plan_room: expected an object",
         RK_INVALID_ARGUMENT},
        {"actor", "\"plan_only\": true, \"plan_owner\": {}", "expected only with share_weights_of",
         RK_INVALID_ARGUMENT},
        {"actor", "\"update_weights_source\": {}",
         "expected only for a role that takes the weights of another", RK_INVALID_ARGUMENT},
        {"rollout", "\"plan_only\": true", "role 'actor' has no model", RK_FAILED_PRECONDITION},
        {"rollout", "\"plan_only\": true, \"plan_owner\": {}", "plan_owner: expected one of model.path",
         RK_INVALID_ARGUMENT},
        {"rollout", "\"plan_only\": true, \"plan_owner\": {\"model.hf_konfig\": 1}", "model.hf_konfig",
         RK_INVALID_ARGUMENT},
        {"rollout", "\"plan_only\": true, \"plan_owner\": [1]",
         "plan_owner: init_model: expected an object of options, got an array", RK_INVALID_ARGUMENT},
        {"rollout",
         "\"plan_only\": true, \"plan_owner\": {\"model.hf_config\": [1],"
         " \"model.override_config.max_position_embeddings\": 64}",
         "the top level: expected an object", RK_INVALID_ARGUMENT},
        {"rollout", "\"plan_only\": true, \"plan_owner\": {\"share_weights_of\": \"ref\"}",
         "plan_owner: share_weights_of", RK_INVALID_ARGUMENT},
        {"rollout", "\"plan_only\": true, \"plan_owner\": {\"model.path\": \"/nowhere\"}",
         "plan_owner: ", RK_PERMISSION_DENIED},
    };
    struct test_cluster cluster;

    (void)state;
    open_cluster(&cluster, 1, one_rank, 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        bool is_rollout = strcmp(cases[i].role, "rollout") == 0;
        char *options = is_rollout ? rk_format("{%s, %s}", role_options[ROLLOUT], cases[i].options)
                                   : test_init_options(cases[i].options);
        struct rk_job *job =
            test_cluster_run(&cluster, 0, test_method_job(cases[i].role, "init_model", options, NULL));

        print_message("%s\n", cases[i].options);
        assert_fails(rk_status_clone(job->status), cases[i].code, cases[i].message);
        rk_job_destroy(job);
        rk_free(options);
    }
    test_cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_only_equals_the_memory_of_roles),
        cmocka_unit_test(test_plan_only_of_meshes_that_differ),
        cmocka_unit_test(test_plan_only_of_a_cache_with_a_share),
        cmocka_unit_test(test_plan_only_counts_sequence_parallelism),
        cmocka_unit_test(test_plan_only_beyond_the_device),
        cmocka_unit_test(test_plan_only_bad_options_are_refused),
    };
    struct rk_device *device;

    assert_ok(rk_test_device_open(&device, 1)); /* ends the process where there is none */
    rk_device_close(device);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
