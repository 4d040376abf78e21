/* The block pool and the batcher: which tokens of which requests a step computes, without a model. */
#include "tests/support/test.h"

#include "base/rk_rng.h"
#include "engine/rollout/rollout.h"

#define MAX_REQUESTS 16
#define MAX_TOKENS   64

/* Requests whose "model" answers with token = position, eos with the id that a request names. */
struct fixture {
    struct rk_arena *arena;
    struct rk_kv_block_pool pool;
    struct rk_batcher batcher;
    struct rk_step_plan plan, before; /* the step being answered, and one that runs meanwhile */
    struct rk_rollout_request requests[MAX_REQUESTS];
    struct rk_rollout_result results[MAX_REQUESTS];
    int32_t prompts[MAX_REQUESTS][MAX_TOKENS], tokens[MAX_REQUESTS][MAX_TOKENS];
    float log_probs[MAX_REQUESTS][MAX_TOKENS];
    int64_t eos[MAX_REQUESTS];
};

static void fixture_init(struct fixture *f, int32_t max_num_seqs, int64_t max_num_batched_tokens,
                         int32_t num_kv_blocks)
{
    const struct rk_rollout_config config = {
        .max_num_seqs = max_num_seqs,
        .max_num_batched_tokens = max_num_batched_tokens,
        .max_model_len = MAX_TOKENS,
    };

    *f = (struct fixture){.arena = rk_arena_create(4096, 0)};
    assert_ok(rk_kv_block_pool_init(&f->pool, f->arena, num_kv_blocks));
    assert_ok(rk_batcher_init(&f->batcher, f->arena, &config, &f->pool));
    assert_ok(rk_step_plan_init(&f->plan, f->arena, max_num_seqs));
    assert_ok(rk_step_plan_init(&f->before, f->arena, max_num_seqs));
}

static void fixture_fini(struct fixture *f)
{
    rk_batcher_end(&f->batcher);
    assert_int_equal(f->pool.num_free, f->pool.num_kv_blocks - 1);
    rk_arena_destroy(f->arena);
}

static void add_request(struct fixture *f, int32_t i, int32_t prompt_len, int32_t max_tokens)
{
    for (int32_t t = 0; t < prompt_len; t++)
        f->prompts[i][t] = 1000 + t;
    f->requests[i] = (struct rk_rollout_request){
        .prompt = f->prompts[i],
        .prompt_len = prompt_len,
        .max_tokens = max_tokens,
    };
    f->results[i] = (struct rk_rollout_result){.tokens = f->tokens[i], .log_probs = f->log_probs[i]};
}

static void set_eos(struct fixture *f, int32_t i, int64_t id)
{
    f->eos[i] = id;
    f->requests[i].eos_token_ids = &f->eos[i];
    f->requests[i].num_eos_token_ids = 1;
}

/* Answers a planned step: the sampled token is its own position. */
static void answer_plan(struct fixture *f, const struct rk_step_plan *plan)
{
    for (int32_t i = 0; i < plan->num_entries; i++) {
        const struct rk_step_entry *entry = &plan->entries[i];

        if (entry->samples)
            rk_batcher_append(&f->batcher, entry, entry->first + entry->num_tokens, -0.5F);
    }
    rk_batcher_retire(&f->batcher);
}

static void answer(struct fixture *f)
{
    answer_plan(f, &f->plan);
}

static int64_t run_all(struct fixture *f)
{
    int64_t num_steps = 0;

    for (; !rk_batcher_is_done(&f->batcher); num_steps++) {
        assert_true(num_steps < 1000);
        rk_batcher_plan(&f->batcher, &f->plan);
        assert_true(f->plan.num_entries > 0);
        assert_true(f->plan.num_tokens <= f->batcher.max_num_batched_tokens);
        answer(f);
    }
    return num_steps;
}

static void test_kv_block_pool_take_is_all_or_nothing(void **state)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_kv_block_pool pool;
    int32_t blocks[8];

    (void)state;
    assert_ok(rk_kv_block_pool_init(&pool, arena, 6));
    assert_int_equal(pool.num_free, 5);
    assert_true(rk_kv_block_pool_take(&pool, blocks, 3));
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(blocks[i], i + 1); /* never the null block */
    assert_false(rk_kv_block_pool_take(&pool, blocks + 3, 3));
    assert_int_equal(pool.num_free, 2);
    assert_true(rk_kv_block_pool_take(&pool, blocks + 3, 2));
    assert_false(rk_kv_block_pool_take(&pool, blocks + 5, 1));
    assert_true(rk_kv_block_pool_take(&pool, blocks + 5, 0));
    rk_kv_block_pool_give(&pool, blocks, 5);
    assert_int_equal(pool.num_free, 5);
    rk_arena_destroy(arena);
}

/* Goal: a prompt longer than the budget is computed in chunks, and only its last chunk samples. */
static void test_plan_long_prompt_is_chunked(void **state)
{
    static const int32_t expected[] = {8, 8, 4, 1};
    struct fixture f;

    (void)state;
    fixture_init(&f, 2, 8, 9);
    add_request(&f, 0, 20, 2);
    rk_batcher_begin(&f.batcher, f.requests, 1, f.results);
    for (size_t step = 0; step < RK_ARRAY_LEN(expected); step++) {
        rk_batcher_plan(&f.batcher, &f.plan);
        assert_int_equal(f.plan.num_entries, 1);
        assert_int_equal(f.plan.entries[0].num_tokens, expected[step]);
        assert_int_equal(f.plan.entries[0].samples, step >= 2);
        assert_int_equal(f.plan.num_samples, step >= 2);
        answer(&f);
    }
    assert_true(rk_batcher_is_done(&f.batcher));
    assert_int_equal(f.results[0].num_tokens, 2);
    assert_int_equal(f.results[0].tokens[0], 20);
    assert_int_equal(f.results[0].tokens[1], 21);
    assert_int_equal(f.results[0].finish_reason, RK_FINISH_LENGTH);
    fixture_fini(&f);
}

/* Goal: running sequences come first; the rest of the budget goes to waiting ones, in order. */
static void test_plan_running_before_waiting(void **state)
{
    struct fixture f;

    (void)state;
    fixture_init(&f, 4, 6, 17);
    add_request(&f, 0, 3, 4);
    add_request(&f, 1, 7, 4);
    add_request(&f, 2, 2, 4);
    rk_batcher_begin(&f.batcher, f.requests, 3, f.results);

    rk_batcher_plan(&f.batcher, &f.plan); /* 3 of request 0, 3 of request 1 */
    assert_int_equal(f.plan.num_entries, 2);
    assert_int_equal(f.plan.entries[1].num_tokens, 3);
    assert_false(f.plan.entries[1].samples);
    answer(&f);
    rk_batcher_plan(&f.batcher, &f.plan); /* 1, then the other 4 of request 1, then 1 of request 2 */
    assert_int_equal(f.plan.num_entries, 3);
    assert_int_equal(f.plan.entries[0].num_tokens, 1);
    assert_int_equal(f.plan.entries[1].num_tokens, 4);
    assert_true(f.plan.entries[1].samples);
    assert_int_equal(f.plan.entries[2].num_tokens, 1);
    assert_int_equal(f.plan.num_tokens, 6);
    answer(&f);
    run_all(&f);
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(f.results[i].num_tokens, 4);
    fixture_fini(&f);
}

/* Goal: a request without free blocks waits, and no later request overtakes it; it starts when blocks are
 * freed. */
static void test_plan_without_blocks_waits_in_order(void **state)
{
    struct fixture f;

    (void)state;
    fixture_init(&f, 4, 64, 5); /* four blocks of 16 tokens */
    add_request(&f, 0, 20, 4);  /* two blocks */
    add_request(&f, 1, 33, 15); /* three */
    add_request(&f, 2, 4, 4);   /* one block: would fit in addition to request 0 */
    rk_batcher_begin(&f.batcher, f.requests, 3, f.results);
    rk_batcher_plan(&f.batcher, &f.plan);
    assert_int_equal(f.batcher.num_running, 1);
    for (int step = 0; step < 4; step++) {
        assert_int_equal(f.batcher.num_running, 1);
        answer(&f);
        rk_batcher_plan(&f.batcher, &f.plan);
    }
    assert_int_equal(f.batcher.num_running, 2); /* request 0 has ended: 1 and 2 are running */
    answer(&f);
    run_all(&f);
    fixture_fini(&f);
}

static void test_plan_at_most_max_num_seqs_run(void **state)
{
    struct fixture f;

    (void)state;
    fixture_init(&f, 2, 64, 33);
    for (int32_t i = 0; i < 5; i++)
        add_request(&f, i, 2, 3);
    rk_batcher_begin(&f.batcher, f.requests, 5, f.results);
    rk_batcher_plan(&f.batcher, &f.plan);
    assert_int_equal(f.batcher.num_running, 2);
    answer(&f);
    assert_int_equal(run_all(&f), 8); /* 2 + 2 + 1 sequences of three steps each, one step is done */
    fixture_fini(&f);
}

/* Goal: an end token ends the response and is part of it; without end tokens the length ends it. */
static void test_append_stop_rules(void **state)
{
    struct fixture f;

    (void)state;
    fixture_init(&f, 4, 64, 33);
    for (int32_t i = 0; i < 4; i++)
        add_request(&f, i, 10, 5);
    set_eos(&f, 0, 12); /* the third response token */
    set_eos(&f, 1, 10); /* the first */
    set_eos(&f, 2, 14); /* the last */
    rk_batcher_begin(&f.batcher, f.requests, 4, f.results);
    run_all(&f);
    assert_int_equal(f.results[0].num_tokens, 3);
    assert_int_equal(f.results[0].tokens[2], 12);
    assert_int_equal(f.results[0].finish_reason, RK_FINISH_STOP);
    assert_int_equal(f.results[1].num_tokens, 1);
    assert_int_equal(f.results[1].finish_reason, RK_FINISH_STOP);
    assert_int_equal(f.results[2].num_tokens, 5);
    assert_int_equal(f.results[2].finish_reason, RK_FINISH_STOP);
    assert_int_equal(f.results[3].num_tokens, 5);
    assert_int_equal(f.results[3].finish_reason, RK_FINISH_LENGTH);
    fixture_fini(&f);
}

/* Goal: for any limits, every token is computed once and in order, and all blocks are returned. */
static void test_plan_random_limits_compute_every_token_once(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 1);
    for (int round = 0; round < 200; round++) {
        int32_t max_num_seqs = 1 + (int32_t)rk_rng_next_below(&rng, 8);
        int32_t num_requests = 1 + (int32_t)rk_rng_next_below(&rng, MAX_REQUESTS);
        int64_t budget = max_num_seqs + rk_rng_next_below(&rng, 40);
        int64_t computed = 0, wanted = 0;
        struct fixture f;

        fixture_init(&f, max_num_seqs, budget, 5 + (int32_t)rk_rng_next_below(&rng, 30));
        for (int32_t i = 0; i < num_requests; i++) {
            add_request(&f, i, 1 + (int32_t)rk_rng_next_below(&rng, 40),
                        1 + (int32_t)rk_rng_next_below(&rng, 20));
            wanted +=
                f.requests[i].prompt_len + f.requests[i].max_tokens - 1; /* the last one is not computed */
        }
        rk_batcher_begin(&f.batcher, f.requests, num_requests, f.results);
        while (!rk_batcher_is_done(&f.batcher)) {
            rk_batcher_plan(&f.batcher, &f.plan);
            assert_true(f.batcher.num_running <= max_num_seqs);
            computed += f.plan.num_tokens;
            answer(&f);
        }
        assert_int_equal(computed, wanted);
        for (int32_t i = 0; i < num_requests; i++)
            for (int32_t t = 0; t < f.requests[i].max_tokens; t++)
                assert_int_equal(f.tokens[i][t], f.requests[i].prompt_len + t);
        fixture_fini(&f);
    }
}

/* Checks the source of each plan entry's token: a known token, or a row of the previous step. */
static void check_sources(const struct fixture *f)
{
    for (int32_t i = 0; i < f->plan.num_entries; i++) {
        const struct rk_step_entry *entry = &f->plan.entries[i];
        int32_t row = 0, expected = -1;

        for (int32_t k = 0; k < f->before.num_entries; k++) {
            if (f->before.entries[k].slot == entry->slot && f->before.entries[k].samples)
                expected = row;
            row += f->before.entries[k].samples;
        }
        assert_int_equal(entry->source, expected);
    }
}

/* Goal: steps planned before the previous step's tokens are known give the same result as steps planned
 * after, for responses that end by an end token at any place or by their length; each token that is known to
 * follow is computed once, and one more for a response that an end token cut short. */
static void test_plan_ahead_yields_the_same(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 3);
    for (int round = 0; round < 300; round++) {
        int32_t max_num_seqs = 1 + (int32_t)rk_rng_next_below(&rng, 8);
        int32_t num_requests = 1 + (int32_t)rk_rng_next_below(&rng, MAX_REQUESTS);
        int64_t budget = max_num_seqs + rk_rng_next_below(&rng, 40), computed = 0, wanted = 0;
        bool is_first = true;
        struct fixture f;

        fixture_init(&f, max_num_seqs, budget, 5 + (int32_t)rk_rng_next_below(&rng, 30));
        for (int32_t i = 0; i < num_requests; i++) {
            int32_t prompt_len = 1 + (int32_t)rk_rng_next_below(&rng, 40);
            int32_t max_tokens = 1 + (int32_t)rk_rng_next_below(&rng, 20);
            int32_t stop = 1 + (int32_t)rk_rng_next_below(&rng, 24); /* response tokens */

            add_request(&f, i, prompt_len, max_tokens);
            set_eos(&f, i, prompt_len + stop - 1);
            wanted += prompt_len + RK_MIN(stop, max_tokens - 1);
        }
        rk_batcher_begin(&f.batcher, f.requests, num_requests, f.results);
        f.before.num_entries = 0;
        while (!rk_batcher_is_done(&f.batcher)) {
            struct rk_step_plan done = f.before;

            rk_batcher_plan(&f.batcher, &f.plan);
            assert_true(f.plan.num_tokens <= budget);
            check_sources(&f);
            computed += f.plan.num_tokens;
            if (!is_first)
                answer_plan(&f, &done);
            is_first = false;
            f.before = f.plan;
            f.plan = done;
        }
        assert_int_equal(computed, wanted);
        for (int32_t i = 0; i < num_requests; i++) {
            int32_t prompt_len = f.requests[i].prompt_len;
            int32_t stop = (int32_t)f.eos[i] - prompt_len + 1, length = f.requests[i].max_tokens;

            assert_int_equal(f.results[i].num_tokens, RK_MIN(stop, length));
            assert_int_equal(f.results[i].finish_reason, stop <= length ? RK_FINISH_STOP : RK_FINISH_LENGTH);
            for (int32_t t = 0; t < f.results[i].num_tokens; t++)
                assert_int_equal(f.tokens[i][t], prompt_len + t);
        }
        fixture_fini(&f);
    }
}

/* Goal: ending in the middle returns all blocks, and the next call starts with an empty state. */
static void test_end_in_the_middle_frees_everything(void **state)
{
    struct fixture f;

    (void)state;
    fixture_init(&f, 2, 8, 9);
    for (int32_t i = 0; i < 3; i++)
        add_request(&f, i, 10, 10);
    for (int round = 0; round < 3; round++) {
        rk_batcher_begin(&f.batcher, f.requests, 3, f.results);
        for (int step = 0; step < 4; step++) {
            rk_batcher_plan(&f.batcher, &f.plan);
            answer(&f);
        }
        rk_batcher_end(&f.batcher);
        assert_int_equal(f.pool.num_free, 8);
    }
    rk_batcher_begin(&f.batcher, f.requests, 3, f.results);
    run_all(&f);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_block_pool_take_is_all_or_nothing),
        cmocka_unit_test(test_plan_long_prompt_is_chunked),
        cmocka_unit_test(test_plan_running_before_waiting),
        cmocka_unit_test(test_plan_without_blocks_waits_in_order),
        cmocka_unit_test(test_plan_at_most_max_num_seqs_run),
        cmocka_unit_test(test_append_stop_rules),
        cmocka_unit_test(test_plan_random_limits_compute_every_token_once),
        cmocka_unit_test(test_plan_ahead_yields_the_same),
        cmocka_unit_test(test_end_in_the_middle_frees_everything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
