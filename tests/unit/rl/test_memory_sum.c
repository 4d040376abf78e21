/* Sums of the memory plans of several roles: per rank, the role that does not fit, and the message. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_knobs.h"
#include "rl/rk_memory_sum.h"
#include "proto/rk_methods.h"

#define GIB ((int64_t)1 << 30)

/* An answer of a daemon. Omitted members are 0. */
struct plan {
    int32_t rank;
    int64_t parameters, optimizer, activations, kv_cache, workspace;
    int64_t given_back, free, free_after;
};

static struct rk_json *plan_json(const struct plan *plan)
{
    const struct {
        const char *path;
        int64_t value;
    } rows[] = {
        {"rank", plan->rank},
        {"planned.parameters", plan->parameters},
        {"planned.optimizer", plan->optimizer},
        {"planned.activations", plan->activations},
        {"planned.kv_cache", plan->kv_cache},
        {"planned.workspace", plan->workspace},
        {"planned.total",
         plan->parameters + plan->optimizer + plan->activations + plan->kv_cache + plan->workspace},
        {"communication", 0},
        {"given_back", plan->given_back},
        {"room.free", plan->free},
        {"room_after.free", plan->free_after},
        {"room_after.own", plan->workspace},
        {"device.free", plan->free - plan->given_back},
    };
    struct rk_json *json = rk_json_new_object();

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++)
        rk_json_set_path(json, rows[i].path, rk_json_new_int(rows[i].value));
    rk_json_set(json, "fits", rk_json_new_bool(plan->free_after >= 0));
    return json;
}

static void add(struct rk_memory_sum *sum, uint32_t role, const struct plan *plans, int32_t count)
{
    struct rk_json *metas[4];

    for (int32_t i = 0; i < count; i++)
        metas[i] = plan_json(&plans[i]);
    assert_ok(rk_memory_sum_add(sum, rk_job_role(role), (const struct rk_json *const *)metas, count));
    for (int32_t i = 0; i < count; i++)
        rk_json_free(metas[i]);
}

/* Actor, critic and rollout on two ranks of 10 GiB, of which 1 GiB is held by a model that the actor
 * replaces. The critic is `critic` GiB on rank 1; operators' workspace of 1 GiB is shared. */
static void make_sum(struct rk_memory_sum *sum, int64_t critic)
{
    const struct plan actor[] = {
        {1, 2 * GIB, GIB, 0, 0, GIB, GIB, 10 * GIB, 6 * GIB}, /* the answers arrive in any order */
        {0, GIB, GIB, 0, 0, GIB, GIB, 10 * GIB, 7 * GIB},
    };
    const struct plan critics[] = {
        {0, GIB, 0, GIB, 0, GIB, 0, 7 * GIB, 5 * GIB},
        {1, GIB, 0, (critic - 1) * GIB, 0, GIB, 0, 6 * GIB, (6 - critic) * GIB},
    };
    const struct plan rollout[] = {
        {0, 0, 0, 0, 3 * GIB, 0, 0, 5 * GIB, 2 * GIB},
        {1, 0, 0, 0, 3 * GIB, 0, 0, (6 - critic) * GIB, (3 - critic) * GIB},
    };

    rk_memory_sum_init(sum, 2);
    add(sum, RK_ROLE_ACTOR, actor, 2);
    add(sum, RK_ROLE_CRITIC, critics, 2);
    add(sum, RK_ROLE_ROLLOUT, rollout, 2);
}

static int64_t int_at(const struct rk_json *json, const char *path)
{
    return rk_json_as_int(rk_json_find_path(json, path), -1);
}

/* Goal: each rank's roles are added up, shared workspace once, and compared with the memory that is free once
 * replaced models are released; the rank with the least remaining memory is shown. */
static void test_sum_of_roles_that_fit(void **state)
{
    struct rk_memory_sum sum;
    struct rk_str table = {0};
    struct rk_json *json;
    const struct rk_json *rank;

    (void)state;
    make_sum(&sum, 2);
    assert_ok(rk_memory_sum_check(&sum));
    assert_int_equal(rk_memory_sum_fullest(&sum), 1);
    json = rk_memory_sum_json(&sum);
    assert_true(rk_json_as_bool(rk_json_find(json, "fits"), false));
    assert_int_equal(int_at(json, "fullest_rank"), 1);
    rank = rk_json_at(rk_json_find(json, "ranks"), 1);
    assert_int_equal(int_at(rank, "sum"), 9 * GIB); /* of plans of 10 GiB */
    assert_int_equal(int_at(rank, "free"), 10 * GIB);
    assert_int_equal(int_at(rank, "left"), 1 * GIB);
    assert_int_equal(rk_json_count(rk_json_find(rank, "roles")), 3);
    assert_int_equal(int_at(rk_json_at(rk_json_find(rank, "roles"), 1), "planned.total"), 3 * GIB);
    assert_int_equal(int_at(rk_json_at(rk_json_find(rank, "roles"), 1), "added"), 2 * GIB);
    assert_int_equal(int_at(rk_json_at(rk_json_find(json, "ranks"), 0), "left"), 2 * GIB);
    rk_json_free(json);

    rk_memory_sum_format(&sum, &table);
    assert_string_equal(rk_str_text(&table),
                        "memory plan of rank 1, the fullest of 2, in GiB:\n"
                        "           parameters  optimizer  activations  kv_cache  workspace     added\n"
                        "actor            2.00       1.00            -         -       1.00      4.00\n"
                        "critic           1.00          -         1.00         -       1.00      2.00\n"
                        "rollout             -          -            -      3.00          -      3.00\n"
                        "sum 9.00 of 10.00 free, 1.00 left\n");
    rk_str_fini(&table);
    rk_memory_sum_fini(&sum);
}

static void add_away(struct rk_memory_sum *sum, uint32_t role, const struct plan *plan, int64_t away)
{
    struct rk_json *meta = plan_json(plan);
    const struct rk_json *const metas[] = {meta};

    rk_json_set(meta, "away", rk_json_new_int(away));
    assert_ok(rk_memory_sum_add(sum, rk_job_role(role), metas, 1));
    rk_json_free(meta);
}

/* Goal: memory that roles release between calls is shown, for all roles if any role releases some. */
static void test_table_shows_what_roles_give_back(void **state)
{
    const struct plan actor = {
        .parameters = 2 * GIB, .optimizer = 3 * GIB, .free = 8 * GIB, .free_after = 3 * GIB};
    const struct plan ref = {.parameters = 2 * GIB, .free = 3 * GIB, .free_after = GIB};
    const struct plan critic = {.parameters = 2 * GIB, .optimizer = 2 * GIB, .free = GIB, .free_after = GIB};
    struct rk_str table = {0};
    struct rk_memory_sum sum;

    (void)state;
    rk_memory_sum_init(&sum, 1);
    add_away(&sum, RK_ROLE_ACTOR, &actor, 5 * GIB);
    add(&sum, RK_ROLE_REF, &ref, 1);
    add_away(&sum, RK_ROLE_CRITIC, &critic, 4 * GIB);
    assert_ok(rk_memory_sum_check(&sum));
    rk_memory_sum_format(&sum, &table);
    assert_string_equal(rk_str_text(&table), "memory plan of rank 0, the fullest of 1, in GiB:\n"
                                             "           parameters  optimizer      away     added\n"
                                             "actor            2.00       3.00      5.00      5.00\n"
                                             "ref              2.00          -         -      2.00\n"
                                             "critic           2.00       2.00      4.00         -\n"
                                             "sum 7.00 of 8.00 free, 1.00 left\n");
    rk_str_fini(&table);
    rk_memory_sum_fini(&sum);
}

/* Goal: the first role with which the sum exceeds the free memory is named, with its size, the free and the
 * remaining memory after the previous roles, the largest role, and the keys that reduce it. */
static void test_role_that_is_too_much_is_named(void **state)
{
    static const char *const texts[] = {
        "role critic does not fit into the memory of rank 1: it takes 7.00 GiB, 6.00 GiB are left of 10.00 "
        "GiB "
        "by actor 4.00 GiB",
        "the largest role is critic with 7.00 GiB",
        "nothing was loaded",
        "for activations of critic lower critic.ppo_max_token_len_per_gpu",
        "set critic.megatron.override_transformer_config.recompute_granularity=full",
    };
    struct rk_memory_sum sum;
    struct rk_status *st;

    (void)state;
    make_sum(&sum, 7);
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++)
        assert_fails(rk_memory_sum_check(&sum), RK_RESOURCE_EXHAUSTED, texts[i]);
    st = rk_memory_sum_check(&sum);
    assert_string_equal(rk_status_reason(st), "DEVICE_OOM");
    rk_status_free(st);
    rk_memory_sum_fini(&sum);

    make_sum(&sum, 5); /* the critic fits, the rollout after it does not */
    assert_fails(rk_memory_sum_check(&sum), RK_RESOURCE_EXHAUSTED,
                 "role rollout does not fit into the memory of rank 1: it takes 3.00 GiB, 1.00 GiB are left");
    assert_fails(rk_memory_sum_check(&sum), RK_RESOURCE_EXHAUSTED,
                 "the largest role is critic with 5.00 GiB");
    assert_fails(rk_memory_sum_check(&sum), RK_RESOURCE_EXHAUSTED,
                 "for kv_cache of rollout lower actor_rollout_ref.rollout.max_num_seqs");
    assert_fails(rk_memory_sum_check(&sum), RK_RESOURCE_EXHAUSTED, "for activations of critic lower");
    rk_memory_sum_fini(&sum);
}

/* Goal: a role that cannot be planned in the remaining memory is named with the roles that use the rest; if
 * one of those does not fit itself, it is named first. */
static void test_role_without_a_plan_is_named(void **state)
{
    struct rk_memory_sum sum;

    (void)state;
    make_sum(&sum, 2);
    assert_fails(
        rk_memory_sum_refuse(&sum, rk_job_role(RK_ROLE_REF),
                             RK_FAIL(RK_RESOURCE_EXHAUSTED, "no block of the cache")),
        RK_RESOURCE_EXHAUSTED,
        "role ref does not fit beside actor 4.00 GiB, critic 2.00 GiB, rollout 3.00 GiB; nothing was "
        "loaded: no block of the cache");
    rk_memory_sum_fini(&sum);
    make_sum(&sum, 7);
    assert_fails(rk_memory_sum_refuse(&sum, rk_job_role(RK_ROLE_REF),
                                      RK_FAIL(RK_RESOURCE_EXHAUSTED, "no block of the cache")),
                 RK_RESOURCE_EXHAUSTED, "role critic does not fit into the memory of rank 1");
    rk_memory_sum_fini(&sum);
}

/* Goal: the next role is planned in the memory that the previous ones leave on each rank; on a rank without
 * the role the remaining memory does not change. */
static void test_room_goes_from_role_to_role(void **state)
{
    const struct plan both[] = {{0, GIB, 0, 0, 0, 0, 0, 8 * GIB, 7 * GIB},
                                {1, GIB, 0, 0, 0, 0, 0, 6 * GIB, 5 * GIB}};
    const struct plan one[] = {{1, GIB, 0, 0, 0, 0, 0, 5 * GIB, 4 * GIB}};
    struct rk_memory_sum sum;
    struct rk_json *room;

    (void)state;
    rk_memory_sum_init(&sum, 2);
    room = rk_memory_sum_room(&sum);
    assert_true(rk_json_is_null(room));
    rk_json_free(room);
    add(&sum, RK_ROLE_ACTOR, both, 2);
    add(&sum, RK_ROLE_REF, one, 1);
    room = rk_memory_sum_room(&sum);
    assert_int_equal(rk_json_count(room), 2);
    assert_int_equal(int_at(rk_json_at(room, 0), "free"), 7 * GIB);
    assert_int_equal(int_at(rk_json_at(room, 1), "free"), 4 * GIB);
    assert_int_equal(rk_memory_sum_fullest(&sum), 1);
    rk_json_free(room);
    rk_memory_sum_fini(&sum);
}

/* Goal: roles on separate ranks are compared with the memory of those ranks only. */
static void test_roles_on_ranks_of_their_own(void **state)
{
    const struct plan actor[] = {{1, 3 * GIB, 0, 0, 0, 0, 0, 8 * GIB, 5 * GIB}};
    const struct plan ref[] = {{2, 4 * GIB, 0, 0, 0, 0, 0, 3 * GIB, -GIB}};
    struct rk_memory_sum sum;

    (void)state;
    rk_memory_sum_init(&sum, 3);
    assert_int_equal(rk_memory_sum_fullest(&sum), 0);
    add(&sum, RK_ROLE_ACTOR, actor, 1);
    assert_int_equal(rk_memory_sum_fullest(&sum), 1);
    assert_ok(rk_memory_sum_check(&sum));
    add(&sum, RK_ROLE_REF, ref, 1);
    assert_int_equal(rk_memory_sum_fullest(&sum), 2);
    assert_fails(rk_memory_sum_check(&sum), RK_RESOURCE_EXHAUSTED,
                 "role ref does not fit into the memory of rank 2: it takes 4.00 GiB, 3.00 GiB are left");
    rk_memory_sum_fini(&sum);
}

/* Takes the answers. */
static void add_on_hosts(struct rk_memory_sum *sum, uint32_t role, struct rk_json *metas[4],
                         int64_t shared_free)
{
    static const char *const domains[] = {"a", "b", "a", ""};

    for (int32_t i = 0; i < 4; i++) {
        rk_json_set_path(metas[i], "device.memory_domain", rk_json_new_string(domains[i]));
        rk_json_set_path(metas[i], "device.shared_free",
                         rk_json_new_int(strcmp(domains[i], "a") == 0 ? shared_free : 1));
    }
    assert_ok(rk_memory_sum_add(sum, rk_job_role(role), (const struct rk_json *const *)metas, 4));
    for (int32_t i = 0; i < 4; i++)
        rk_json_free(metas[i]);
}

/* Actor and critic on four ranks with 10 GiB each; ranks 0 and 2 are on one host with `shared` GiB, and rank
 * 2 has a model of 1 GiB to replace. */
static void make_hosts(struct rk_memory_sum *sum, int64_t shared)
{
    struct rk_json *actor[4], *critic[4];

    for (int32_t rank = 0; rank < 4; rank++) {
        int64_t old = rank == 2 ? GIB : 0, room = 10 * GIB + old;

        actor[rank] = plan_json(&(struct plan){rank, 2 * GIB, 0, 0, 0, 0, old, room, room - 2 * GIB});
        critic[rank] =
            plan_json(&(struct plan){rank, 2 * GIB, 0, GIB, 0, 0, 0, room - 2 * GIB, room - 5 * GIB});
    }
    rk_memory_sum_init(sum, 4);
    add_on_hosts(sum, RK_ROLE_ACTOR, actor, shared * GIB);
    add_on_hosts(sum, RK_ROLE_CRITIC, critic, shared * GIB);
}

/* Goal: daemons that share a host's memory have to fit together, not only individually. */
static void test_ranks_that_share_memory_are_added_up(void **state)
{
    static const char *const texts[] = {
        "role critic does not fit into the memory that the ranks 0, 2 share: with it they take 10.00 GiB of "
        "9.00 GiB, each actor 2.00 GiB, critic 3.00 GiB",
        "the largest role is critic with 3.00 GiB",
        "for parameters of critic raise critic.megatron.tensor_model_parallel_size",
    };
    struct rk_memory_sum sum;
    struct rk_str table = {0};
    struct rk_json *json;
    const struct rk_json *shared;

    (void)state;
    make_hosts(&sum, 9); /* includes the replaced model's memory */
    assert_ok(rk_memory_sum_check(&sum));
    rk_memory_sum_format(&sum, &table);
    assert_non_null(
        strstr(rk_str_text(&table), "\nranks 0, 2 share memory: sum 10.00 of 10.00 free, 0.00 left\n"));
    assert_null(strstr(rk_str_text(&table), "ranks 1"));
    rk_str_fini(&table);
    rk_memory_sum_fini(&sum);

    make_hosts(&sum, 8);
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++)
        assert_fails(rk_memory_sum_check(&sum), RK_RESOURCE_EXHAUSTED, texts[i]);
    json = rk_memory_sum_json(&sum);
    assert_false(rk_json_as_bool(rk_json_find(json, "fits"), true));
    assert_int_equal(rk_json_count(rk_json_find(json, "shared")), 1);
    shared = rk_json_at(rk_json_find(json, "shared"), 0);
    assert_int_equal(rk_json_count(rk_json_find(shared, "ranks")), 2);
    assert_int_equal(rk_json_as_int(rk_json_at(rk_json_find(shared, "ranks"), 1), -1), 2);
    assert_int_equal(int_at(shared, "left"), -GIB);
    rk_json_free(json);
    rk_memory_sum_fini(&sum);
}

static void assert_key(const char *section, const char *key, const char *value)
{
    char *setting = rk_format("%s%s=%s", section, key, value);
    const char *const settings[] = {setting};
    struct rk_config *job;

    print_message("%s\n", setting);
    assert_ok(rk_job_load(&job, RK_TEST_SOURCE_DIR "/examples/digits/grpo.json", settings, 1));
    rk_config_destroy(job);
    rk_free(setting);
}

/* Goal: every key in the advice of a refused run is a job key. */
static void test_advice_names_keys_of_a_job(void **state)
{
    int64_t count;
    const struct rk_job_role *roles = rk_job_roles(&count);

    (void)state;
    assert_true(count > 0);
    for (int64_t i = 0; i < count; i++) {
        assert_key(roles[i].section, roles[i].max_tokens, "4096");
        if (!roles[i].shares)
            assert_key(roles[i].section, RK_JOB_TP, "1");
        if (!roles[i].trains)
            continue;
        assert_key(roles[i].section, RK_KNOB_RECOMPUTE "granularity", "full");
        assert_key(roles[i].section, "megatron.param_offload", "true");
        assert_key(roles[i].section, "megatron.grad_offload", "true");
        assert_key(roles[i].section, "megatron.optimizer_offload", "true");
    }
    assert_key(RK_JOB_ROLLOUT, "max_num_seqs", "4");
    assert_key(RK_JOB_ROLLOUT, "max_model_len", "64");
    assert_key(RK_JOB_ROLLOUT, "gpu_memory_utilization", "0.5");
}

/* Goal: an answer without the figures of a plan, or from a non-existing rank, is refused. */
static void test_answer_that_is_no_plan_is_refused(void **state)
{
    struct rk_json *meta = plan_json(&(struct plan){.rank = 0, .free = 1});
    struct rk_memory_sum sum;

    (void)state;
    rk_memory_sum_init(&sum, 1);
    rk_json_set(meta, "room_after", rk_json_new_string("large"));
    assert_fails(rk_memory_sum_add(&sum, rk_job_role(RK_ROLE_ACTOR), (const struct rk_json *const *)&meta, 1),
                 RK_INTERNAL, "'room_after.free'");
    rk_json_free(meta);
    meta = plan_json(&(struct plan){.rank = 1, .free = 1});
    assert_fails(rk_memory_sum_add(&sum, rk_job_role(RK_ROLE_ACTOR), (const struct rk_json *const *)&meta, 1),
                 RK_INTERNAL, "plan of rank 1 of 1");
    assert_int_equal(sum.num_roles, 0);
    rk_json_free(meta);
    rk_memory_sum_fini(&sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sum_of_roles_that_fit),
        cmocka_unit_test(test_table_shows_what_roles_give_back),
        cmocka_unit_test(test_role_that_is_too_much_is_named),
        cmocka_unit_test(test_role_without_a_plan_is_named),
        cmocka_unit_test(test_room_goes_from_role_to_role),
        cmocka_unit_test(test_roles_on_ranks_of_their_own),
        cmocka_unit_test(test_ranks_that_share_memory_are_added_up),
        cmocka_unit_test(test_advice_names_keys_of_a_job),
        cmocka_unit_test(test_answer_that_is_no_plan_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
