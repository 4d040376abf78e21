/* A plan equals the memory that a role allocates, to the byte, for every layout and option, and nothing is
 * allocated later.
 *
 * Every rank is a separate process. Rows that need more devices than the machine has are skipped. */
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "base/rk_time.h"
#include "engine/model/model.h"
#include "engine/rk_memory.h"
#include "tests/support/device.h"
#include "tests/unit/engine/memory_plan_cases.h"
#include "tests/unit/engine/mixed_family.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define TRAIN_TOKENS    96
#define LOG_PROB_TOKENS 150
#define TOKENS_MAX      LOG_PROB_TOKENS
#define IDS_MAX         80 /* more than the columns of a rank, with tp=2 */
#define VOCAB_SIZE      131
#define NUM_SEQS        5 /* sequences that the rollout runs at the same time */
#define MODEL_LEN       90
#define RUN_TIMEOUT_S   60 /* of a row */

/* A packed micro-batch in separate memory. */
struct tokens {
    struct rk_packed packed;
    int32_t ids[TOKENS_MAX], positions[TOKENS_MAX], labels[TOKENS_MAX], cu_seqlens[TOKENS_MAX + 1];
};

/* Sequences of `seq_len` tokens, the last one shorter; all tokens labelled. */
static void make_tokens(struct tokens *t, int64_t num_tokens, int32_t seq_len)
{
    struct rk_packed *packed = &t->packed;
    struct rk_rng rng;

    rk_rng_init(&rng, rk_test_seed(), (uint64_t)num_tokens);
    *packed = (struct rk_packed){.num_tokens = num_tokens,
                                 .tokens = t->ids,
                                 .positions = t->positions,
                                 .labels = t->labels,
                                 .cu_seqlens = t->cu_seqlens};
    for (int32_t i = 0; i < num_tokens; i++) {
        t->ids[i] = (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
        t->labels[i] = (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
        t->positions[i] = i % seq_len;
        if (i % seq_len == 0)
            t->cu_seqlens[packed->num_seqs++] = i;
    }
    t->cu_seqlens[packed->num_seqs] = (int32_t)num_tokens;
    packed->max_seqlen = (int32_t)RK_MIN(num_tokens, (int64_t)seq_len);
}

static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    const struct tokens *t = user;

    (void)outputs;
    for (int k = 0; k < RK_HEAD_OUTPUT_COUNT; k++) {
        for (int64_t i = 0; grads->of[k] && i < t->packed.num_tokens; i++)
            grads->of[k][i] = 1e-3;
    }
    return NULL;
}

/* The two roles of one rank, and their plans. */
struct roles {
    const struct rk_plan_case *row;
    struct rk_test_model test;
    struct rk_model *sampler;   /* shares the weights; NULL with a pipeline */
    struct rk_rollout *rollout; /* likewise */
    struct rk_memory_plan actor_plan, rollout_plan;
    uint64_t other_bytes; /* device memory of neither role, such as that of communicators */
    /* With a pipeline a call has `rounds` micro-batches per stage, of num_sizes sizes. A stage never holds
     * more than two per stage at once. */
    int32_t rounds, num_sizes;
};

static bool has_stages(const struct rk_plan_case *row)
{
    return row->pp > 1;
}

static bool generates(const struct rk_plan_case *row)
{
    return !has_stages(row) && (row->ep <= 1 || (row->ep == row->tp && row->etp == 1));
}

static struct rk_status *make_plans(struct roles *roles, struct rk_comm_world *world,
                                    const struct rk_optim_config *optim,
                                    const struct rk_rollout_config *rollout)
{
    struct rk_memory_plan_desc desc = {
        .struct_size = sizeof(desc),
        .mesh = rk_mesh_comms_mesh(roles->test.comms),
        .rank = world ? rk_comm_world_rank(world) : 0,
        .optim = optim,
        .limits = {TRAIN_TOKENS, LOG_PROB_TOKENS, roles->row->num_ids},
        .device = roles->test.device,
    };

    rk_model_describe(roles->test.model, &desc.model);
    RK_TRY(rk_memory_plan_make(&roles->actor_plan, &desc));
    if (!generates(roles->row))
        return NULL;
    desc.optim = NULL;
    desc.rollout = rollout;
    desc.shares_weights = true;
    desc.limits = (struct rk_memory_limits){0};
    return rk_memory_plan_make(&roles->rollout_plan, &desc);
}

static struct rk_status *open_roles(struct roles *roles, struct rk_comm_world *world)
{
    const struct rk_plan_case *row = roles->row;
    const struct rk_test_model_spec spec = {
        .config = row->config,
        .seed = 3,
        .dtype = row->dtype,
        .numerics = row->numerics,
        .recompute_num_layers = row->recompute_num_layers,
        .tp = row->tp,
        .cp = row->cp,
        .dp = row->dp,
        .ep = row->ep,
        .etp = row->etp,
        .moe_dispatch_tokens = row->moe_dispatch_tokens,
        .moe_keep_dispatched = row->moe_keep_dispatched,
        .sequence_parallel = row->sequence_parallel,
        .pp = row->pp,
        .vpp = row->vpp,
        .num_first = row->num_first,
        .num_last = row->num_last,
        .world = world,
        .stream = world ? rk_test_rank_stream(rk_comm_world_rank(world)) : NULL,
    };
    struct rk_optim_config optim = rk_test_adamw(1e-3, 0.1, 1.0);
    const struct rk_rollout_config rollout = {.max_num_seqs = NUM_SEQS,
                                              .max_num_batched_tokens = 64,
                                              .max_model_len = MODEL_LEN,
                                              .num_kv_blocks = row->num_kv_blocks};
    struct rk_model_memory base;

    optim.adds_in_shards = row->adds_in_shards;
    RK_TRY(rk_test_model_open(&roles->test, &spec));
    base = rk_model_get_memory(roles->test.model);
    roles->other_bytes =
        rk_device_get_stats(roles->test.device).allocated_bytes - rk_memory_total_bytes(&base);
    rk_device_reset_peak(roles->test.device);
    RK_TRY(make_plans(roles, world, &optim, &rollout));
    RK_TRY(rk_test_enable_training(roles->test.model, &optim));
    RK_TRY(rk_memory_plan_reserve(&roles->actor_plan, roles->test.model));
    if (!generates(row))
        return NULL;
    RK_TRY(rk_model_create_shared(&roles->sampler, roles->test.model));
    RK_TRY(rk_rollout_create(&roles->rollout, roles->sampler, &rollout));
    return rk_memory_plan_reserve(&roles->rollout_plan, roles->sampler);
}

static void close_roles(struct roles *roles)
{
    rk_rollout_destroy(roles->rollout);
    rk_model_destroy(roles->sampler);
    rk_test_model_close(&roles->test);
}

/* The micro-batches of one call, in the same memory one after the other. */
struct calls {
    const struct roles *roles;
    int64_t num_tokens; /* of the largest */
    int32_t seq_len;
    struct tokens t;
    double outputs[RK_HEAD_OUTPUT_COUNT][TOKENS_MAX];
    struct rk_head_arrays out;
};

static int64_t num_calls(const struct roles *roles)
{
    return has_stages(roles->row) ? (int64_t)roles->rounds * roles->row->pp : 1;
}

static void make_call(struct calls *calls, int64_t i)
{
    make_tokens(&calls->t, calls->num_tokens / (1 + i % calls->roles->num_sizes), calls->seq_len);
}

static struct rk_status *bind_update(void *user, int64_t i, struct rk_train_micro *out)
{
    static const int32_t ids[TRAIN_TOKENS * IDS_MAX];
    struct calls *calls = user;

    make_call(calls, i);
    *out = (struct rk_train_micro){.packed = &calls->t.packed,
                                   .temperature = 0.8,
                                   .outputs = rk_model_head_outputs(calls->roles->test.model),
                                   .num_ids = calls->roles->row->num_ids,
                                   .ids = ids,
                                   .loss_fn = loss_fn,
                                   .user = &calls->t};
    return NULL;
}

static struct rk_status *update(struct roles *roles, int64_t num_tokens, int32_t seq_len)
{
    struct calls calls = {.roles = roles, .num_tokens = num_tokens, .seq_len = seq_len};
    const struct rk_train_work work = {.count = num_calls(roles), .bind = bind_update, .user = &calls};
    struct rk_step_stats stats;

    RK_TRY(rk_trainer_begin(rk_model_trainer(roles->test.model)));
    RK_TRY(rk_trainer_micro_batches(rk_model_trainer(roles->test.model), &work));
    return rk_trainer_step(rk_model_trainer(roles->test.model), &stats);
}

static struct rk_status *bind_log_probs(void *user, int64_t i, struct rk_forward_micro *out)
{
    struct calls *calls = user;

    make_call(calls, i);
    *out = (struct rk_forward_micro){.packed = &calls->t.packed, .temperature = 0.8, .out = &calls->out};
    return NULL;
}

static struct rk_status *log_probs(struct roles *roles, int64_t num_tokens, int32_t seq_len)
{
    struct calls calls = {.roles = roles, .num_tokens = num_tokens, .seq_len = seq_len};
    const struct rk_forward_work work = {.count = num_calls(roles), .bind = bind_log_probs, .user = &calls};

    for (int k = 0; k < RK_HEAD_OUTPUT_COUNT; k++) {
        if (rk_model_head_outputs(roles->test.model) & RK_HEAD_BIT(k))
            calls.out.of[k] = calls.outputs[k];
    }
    return rk_model_forward_all(roles->test.model, &work);
}

/* More requests than run together; prompts of this length. Any sampled token ends a response whose maximum
 * length is large: its memory is allocated when it starts. */
static struct rk_status *generate(struct roles *roles, int32_t prompt_len, int32_t max_tokens)
{
    enum { COUNT = 2 * NUM_SEQS + 1 };
    struct rk_rollout_request requests[COUNT];
    struct rk_rollout_result results[COUNT];
    int32_t prompt[MODEL_LEN], tokens[COUNT][MODEL_LEN];
    float values[COUNT][MODEL_LEN];
    int64_t every_id[VOCAB_SIZE];

    for (int64_t id = 0; id < VOCAB_SIZE; id++)
        every_id[id] = id;
    for (int32_t i = 0; i < MODEL_LEN; i++)
        prompt[i] = i % VOCAB_SIZE;
    for (int i = 0; i < COUNT; i++) {
        requests[i] = (struct rk_rollout_request){.prompt = prompt,
                                                  .prompt_len = prompt_len,
                                                  .max_tokens = max_tokens,
                                                  .temperature = 1,
                                                  .top_p = 1,
                                                  .seed = 7,
                                                  .stream = (uint64_t)i,
                                                  .eos_token_ids = every_id,
                                                  .num_eos_token_ids = max_tokens > 3 ? VOCAB_SIZE : 0};
        results[i] = (struct rk_rollout_result){.tokens = tokens[i], .log_probs = values[i]};
    }
    return rk_rollout_generate(roles->rollout, requests, COUNT, results, NULL);
}

/* How much of what is planned has been used, when the largest passes have run. */
typedef enum use { SOME, NOT_MORE, ALL } use_t;

/* Every kind as planned. */
static int check_memory(const struct rk_memory_plan *plan, const struct rk_model *model, use_t use)
{
    struct rk_model_memory held = rk_model_get_memory(model), planned = plan->memory;

    planned.workspace_bytes -= plan->workspace.scratch_bytes + plan->workspace.kept_bytes;
    for (int kind = 0; kind < RK_MEMORY_KIND_COUNT; kind++) {
        uint64_t actual = rk_memory_kind_bytes(&held, (rk_memory_kind_t)kind);
        uint64_t expected = rk_memory_kind_bytes(&planned, (rk_memory_kind_t)kind);

        RK_RANK_CHECK(actual == expected, "%s: %llu bytes held, %llu planned",
                      rk_memory_kind_name((rk_memory_kind_t)kind), (unsigned long long)actual,
                      (unsigned long long)expected);
    }
    RK_RANK_CHECK(held.pass_host_bytes == planned.pass_host_bytes, "%llu bytes of staging, %llu planned",
                  (unsigned long long)held.pass_host_bytes, (unsigned long long)planned.pass_host_bytes);
    RK_RANK_CHECK(held.rollout_host_bytes == planned.rollout_host_bytes, "host memory of the rollout");
    RK_RANK_CHECK(held.num_slots == planned.num_slots, "%lld slots, %lld planned", (long long)held.num_slots,
                  (long long)planned.num_slots);
    RK_RANK_CHECK(held.step_overflows == 0, "%llu overflows", (unsigned long long)held.step_overflows);
    if (use == SOME)
        return 0;
    RK_RANK_CHECK(use == NOT_MORE ? held.activation_peak_bytes <= planned.activation_peak_bytes
                                  : held.activation_peak_bytes == planned.activation_peak_bytes,
                  "%llu bytes used, %llu planned", (unsigned long long)held.activation_peak_bytes,
                  (unsigned long long)planned.activation_peak_bytes);
    RK_RANK_CHECK(held.pass_host_peak_bytes == planned.pass_host_peak_bytes,
                  "%llu bytes of staging used, %llu planned", (unsigned long long)held.pass_host_peak_bytes,
                  (unsigned long long)planned.pass_host_peak_bytes);
    RK_RANK_CHECK(held.slot_peak_bytes == planned.slot_peak_bytes, "%llu bytes used in a slot, %llu planned",
                  (unsigned long long)held.slot_peak_bytes, (unsigned long long)planned.slot_peak_bytes);
    RK_RANK_CHECK(held.slot_host_peak_bytes == planned.slot_host_peak_bytes,
                  "%llu bytes of staging used in a slot, %llu planned",
                  (unsigned long long)held.slot_host_peak_bytes,
                  (unsigned long long)planned.slot_host_peak_bytes);
    return 0;
}

static int check_plans(const struct roles *roles, bool is_peak)
{
    uint64_t operators = roles->actor_plan.workspace.scratch_bytes + roles->actor_plan.workspace.kept_bytes +
                         roles->rollout_plan.workspace.scratch_bytes +
                         roles->rollout_plan.workspace.kept_bytes;
    uint64_t planned = rk_memory_total_bytes(&roles->actor_plan.memory) +
                       rk_memory_total_bytes(&roles->rollout_plan.memory) - operators + roles->other_bytes;
    struct rk_device_stats stats = rk_device_get_stats(roles->test.device);

    RK_RANK_CHECK(stats.allocated_bytes == planned, "%llu bytes allocated, %llu planned",
                  (unsigned long long)stats.allocated_bytes, (unsigned long long)planned);
    RK_RANK_CHECK(stats.peak_bytes == stats.allocated_bytes, "more was allocated for a while");
    return check_memory(&roles->actor_plan, roles->test.model, is_peak ? ALL : SOME) ||
           (roles->sampler && check_memory(&roles->rollout_plan, roles->sampler,
                                           !is_peak                        ? SOME
                                           : roles->row->plans_other_steps ? NOT_MORE
                                                                           : ALL));
}

static int run_largest(struct roles *roles)
{
    int32_t seq_len = RK_MAX(roles->row->seq_len, 1);

    RK_RANK_OK(update(roles, TRAIN_TOKENS, seq_len));
    RK_RANK_OK(log_probs(roles, LOG_PROB_TOKENS, seq_len));
    if (!roles->rollout)
        return 0;
    /* 13 prompt tokens times 5 are more than the 64 of a step. */
    RK_RANK_OK(generate(roles, 13, 1));
    RK_RANK_OK(generate(roles, 1, MODEL_LEN - 1));
    return 0;
}

/* Goal: on a device whose operators declare their workspace, all of it is allocated before the first pass. */
static int check_reserved(const struct roles *roles, const struct rk_device_stats *reserved)
{
    struct rk_device_stats stats = rk_device_get_stats(roles->test.device);

    if (rk_test_device_is_cpu(roles->test.device))
        return 0; /* its workspace is on the heap and grows during the first passes */
    RK_RANK_CHECK(stats.num_allocations == reserved->num_allocations,
                  "%llu allocations after the passes, %llu before", (unsigned long long)stats.num_allocations,
                  (unsigned long long)reserved->num_allocations);
    return 0;
}

static int run_rank(struct rk_comm_world *world, void *user)
{
    const struct rk_plan_case *row = user;
    struct roles roles = {.row = row, .rounds = 2, .num_sizes = 1};
    struct rk_device_stats reserved, warm;

    RK_RANK_OK(open_roles(&roles, world));
    reserved = rk_device_get_stats(roles.test.device);
    if (check_plans(&roles, false) || run_largest(&roles) || check_plans(&roles, true) ||
        check_reserved(&roles, &reserved))
        return 1;
    /* The CPU's workspace depends on the longest sequence and on the product's kernel. */
    RK_RANK_OK(update(&roles, 0, 1));
    RK_RANK_OK(update(&roles, TRAIN_TOKENS, TRAIN_TOKENS));
    RK_RANK_OK(log_probs(&roles, LOG_PROB_TOKENS - 60, 30));
    warm = rk_device_get_stats(roles.test.device);
    for (int32_t step = 0; step < row->num_steps; step++) {
        struct rk_device_stats stats;

        roles.rounds = 1 + step % 3;
        roles.num_sizes = 1 + step % 4;
        RK_RANK_OK(update(&roles, (11 * step) % (TRAIN_TOKENS + 1), 1 + step % 40));
        RK_RANK_OK(log_probs(&roles, (37 * step) % (LOG_PROB_TOKENS + 1), 1 + step % 50));
        if (roles.rollout)
            RK_RANK_OK(generate(&roles, 1 + step % 7, 3));
        stats = rk_device_get_stats(roles.test.device);
        RK_RANK_CHECK(stats.num_allocations == warm.num_allocations, "step %d: %llu allocations, then %llu",
                      step, (unsigned long long)warm.num_allocations,
                      (unsigned long long)stats.num_allocations);
        RK_RANK_CHECK(stats.allocated_bytes == warm.allocated_bytes, "step %d", step);
        RK_RANK_CHECK(stats.host_bytes == warm.host_bytes, "step %d", step);
        RK_RANK_CHECK(stats.own_bytes == warm.own_bytes, "step %d", step);
    }
    if (check_plans(&roles, true) || check_reserved(&roles, &reserved))
        return 1;
    close_roles(&roles);
    return 0;
}

static int run_alone(int32_t rank, int32_t num_ranks, void *user)
{
    (void)rank;
    (void)num_ranks;
    return run_rank(NULL, user);
}

/* Runs in a separate process, since it opens a device. If there is no such device, this process ends too. */
static int run_one_rank(struct rk_plan_case *row)
{
    struct rk_test_rank_result result;
    int failed = rk_test_run_ranks_results(1, run_alone, row, RUN_TIMEOUT_S, &result);

    if (result.exit_code == RK_TEST_EXIT_SKIPPED)
        exit(RK_TEST_EXIT_SKIPPED);
    return failed;
}

/* Goal: a plan equals what the role holds, kind by kind, and the largest passes use exactly that; afterwards
 * any mixture of smaller passes allocates nothing. Method: every row on real ranks. */
static void test_plan_equals_the_memory_of_roles(void **state)
{
    (void)state;
    for (size_t i = 0; i < rk_num_plan_cases; i++) {
        struct rk_plan_case row = rk_plan_cases[i];
        int32_t num_ranks = RK_MAX(row.tp, 1) * RK_MAX(row.cp, 1) * RK_MAX(row.dp, 1) * RK_MAX(row.pp, 1);
        int64_t begin_ns = rk_time_now_ns();
        int failed = 0;

        if (row.is_cpu_only && rk_test_device_dtype() != RK_DTYPE_F64)
            continue; /* other devices lack heads of 576 in the backward pass */
        if (num_ranks == 1)
            failed = run_one_rank(&row);
        else if (rk_test_device_max_ranks() >= num_ranks)
            failed = rk_test_run_world(num_ranks, "unix", run_rank, &row, RUN_TIMEOUT_S);
        if (failed)
            fail_msg("%s: %d ranks failed", row.label, failed);
        print_message("%s: %.2f s\n", row.label, (double)(rk_time_now_ns() - begin_ns) * 1e-9);
    }
}

/* Goal: log-prob passes of a role that does not train have memory for the most likely ids, and only then.
 * Method: the largest pass on a model with the plan's memory. */
static void test_plan_of_log_prob_passes_holds_the_most_likely_ids(void **state)
{
    const struct rk_test_model_spec spec = {.config = RK_TEST_SMALL_CONFIG, .seed = 3, .dtype = RK_DTYPE_F32};
    static int32_t top_ids[LOG_PROB_TOKENS * IDS_MAX];
    static double top_log_probs[LOG_PROB_TOKENS * IDS_MAX];
    struct rk_memory_plan plans[2];
    struct rk_test_model test;
    struct tokens t;

    (void)state;
    assert_ok(rk_test_model_open(&test, &spec));
    for (int i = 0; i < 2; i++) {
        struct rk_memory_plan_desc desc = {
            .struct_size = sizeof(desc),
            .mesh = rk_mesh_comms_mesh(test.comms),
            .limits = {.log_prob_tokens = LOG_PROB_TOKENS, .num_ids = i == 1 ? IDS_MAX : 0},
        };

        rk_model_describe(test.model, &desc.model);
        assert_ok(rk_memory_plan_make(&plans[i], &desc));
    }
    assert_true(plans[1].memory.activation_bytes >=
                plans[0].memory.activation_bytes + LOG_PROB_TOKENS * IDS_MAX * 2 * sizeof(float));
    assert_ok(rk_memory_plan_reserve(&plans[1], test.model));
    make_tokens(&t, LOG_PROB_TOKENS, 1);
    assert_ok(rk_model_forward(
        test.model, &t.packed, 1.0, NULL,
        &(struct rk_head_arrays){
            .ids = {.num_ids = IDS_MAX, .top_ids = top_ids, .top_log_probs = top_log_probs}}));
    assert_int_equal(rk_model_get_memory(test.model).step_overflows, 0);
    rk_test_model_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_equals_the_memory_of_roles),
        cmocka_unit_test(test_plan_of_log_prob_passes_holds_the_most_likely_ids),
    };

    rk_family_set_extra(&rk_test_mixed_family);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
