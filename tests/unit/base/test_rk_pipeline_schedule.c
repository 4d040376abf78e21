/* Schedules: the exact lists, live activations, senders and receivers. */
#include "base/layout/rk_pipeline.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_rng.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

static struct rk_pipeline_step *make_steps(const struct rk_pipeline_schedule *schedule, int32_t stage)
{
    struct rk_pipeline_step *steps;

    assert_ok(rk_pipeline_schedule_check(schedule));
    steps = rk_calloc((size_t)rk_pipeline_schedule_num_steps(schedule), sizeof(*steps));
    rk_pipeline_schedule_steps(schedule, stage, steps);
    return steps;
}

static void format_steps(struct rk_str *out, const struct rk_pipeline_schedule *schedule, int32_t stage)
{
    struct rk_pipeline_step *steps = make_steps(schedule, stage);

    for (int64_t i = 0; i < rk_pipeline_schedule_num_steps(schedule); i++) {
        rk_str_appendf(out, "%s%c%d", i ? " " : "", steps[i].kind == RK_PIPELINE_FORWARD ? 'F' : 'B',
                       steps[i].micro_batch);
        if (schedule->vpp > 1)
            rk_str_appendf(out, ".%d", steps[i].chunk);
    }
    rk_free(steps);
}

/* Goal: the lists of Megatron-LM's schedules, stage by stage. */
static void test_pipeline_schedule_lists(void **state)
{
    static const struct {
        struct rk_pipeline_schedule schedule;
        const char *stages[4];
    } cases[] = {
        {{.pp = 0, .num_micro_batches = 2}, {"F0 B0 F1 B1"}},
        {{.pp = 2, .num_micro_batches = 4}, {"F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"}},
        {{.pp = 4, .vpp = 1, .num_micro_batches = 8},
         {"F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
          "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
          "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
          "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"}},
        {{.pp = 4, .num_micro_batches = 2}, {"F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"}},
        {{.pp = 2, .vpp = 2, .num_micro_batches = 4, .group_size = 2},
         {"F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
          "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"}},
        {{.pp = 4, .vpp = 2, .num_micro_batches = 8},
         {"F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 "
          "F5.1 B3.1 F6.1 B0.0 F7.1 B1.0 B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0",
          "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 B0.1 F5.0 B1.1 F6.0 B2.1 F7.0 B3.1 "
          "F4.1 B0.0 F5.1 B1.0 F6.1 B2.0 F7.1 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0",
          "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 B0.1 F3.1 B1.1 F4.0 B2.1 F5.0 B3.1 F6.0 B0.0 "
          "F7.0 B1.0 F4.1 B2.0 F5.1 B3.0 F6.1 B4.1 F7.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0",
          "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 "
          "F6.0 B2.0 F7.0 B3.0 F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0"}},
        {{.pp = 2, .num_micro_batches = 3, .forward_only = true}, {"F0 F1 F2", "F0 F1 F2"}},
        {{.pp = 2, .vpp = 2, .num_micro_batches = 3, .forward_only = true},
         {"F0.0 F1.0 F0.1 F1.1 F2.0 F2.1", "F0.0 F1.0 F0.1 F1.1 F2.0 F2.1"}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (int32_t stage = 0; stage < RK_MAX(cases[i].schedule.pp, 1); stage++) {
            struct rk_str text = {0};

            format_steps(&text, &cases[i].schedule, stage);
            if (strcmp(rk_str_text(&text), cases[i].stages[stage]) != 0)
                fail_msg("case %zu stage %d: %s", i, stage, rk_str_text(&text));
            rk_str_fini(&text);
        }
    }
}

static void test_pipeline_schedule_refused(void **state)
{
    static const struct {
        struct rk_pipeline_schedule schedule;
        const char *message;
    } cases[] = {
        {{.pp = 2, .num_micro_batches = 0}, "0 micro-batches"},
        {{.pp = -1, .num_micro_batches = 1}, "pp=-1"},
        {{.pp = 2, .vpp = -1, .num_micro_batches = 1}, "vpp=-1"},
        {{.pp = 1, .vpp = 2, .num_micro_batches = 4}, "vpp=2 needs pp > 1"},
        {{.pp = 4, .vpp = 2, .num_micro_batches = 8, .group_size = 3}, "groups of 3"},
        {{.pp = 4, .vpp = 2, .num_micro_batches = 2}, "e.g. 4"},
        {{.pp = 4, .vpp = 2, .num_micro_batches = 10}, "e.g. 12"},
        {{.pp = 2, .vpp = 2, .num_micro_batches = 7, .group_size = 3}, "e.g. 9"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        assert_fails(rk_pipeline_schedule_check(&cases[i].schedule), RK_INVALID_ARGUMENT, cases[i].message);
    /* a last group of at least pp is valid */
    assert_ok(rk_pipeline_schedule_check(
        &(struct rk_pipeline_schedule){.pp = 2, .vpp = 2, .num_micro_batches = 8, .group_size = 3}));
}

static void test_pipeline_schedule_round_micro_batches(void **state)
{
    (void)state;
    assert_int_equal(rk_pipeline_round_micro_batches(5, 4, 1, 0), 5);
    assert_int_equal(rk_pipeline_round_micro_batches(5, 4, 0, 0), 5);
    assert_int_equal(rk_pipeline_round_micro_batches(5, 4, 2, 0), 8);
    assert_int_equal(rk_pipeline_round_micro_batches(8, 4, 2, 0), 8);
    assert_int_equal(rk_pipeline_round_micro_batches(1, 4, 3, 6), 6);
    assert_int_equal(rk_pipeline_round_micro_batches(0, 4, 2, 0), 0);
    assert_int_equal(rk_pipeline_round_micro_batches(7, 0, 2, 0), 7);
}

static void test_pipeline_schedule_peers(void **state)
{
    const struct rk_pipeline_schedule schedule = {.pp = 3, .vpp = 2, .num_micro_batches = 3};
    static const struct {
        int32_t stage;
        struct rk_pipeline_step step;
        bool receives, sends;
        struct rk_pipeline_place from, to;
    } cases[] = {
        {0, {RK_PIPELINE_FORWARD, 1, 0}, false, true, {-1, -1}, {1, 0}},
        {1, {RK_PIPELINE_FORWARD, 1, 0}, true, true, {0, 0}, {2, 0}},
        {2, {RK_PIPELINE_FORWARD, 1, 0}, true, true, {1, 0}, {0, 1}}, /* the ring */
        {0, {RK_PIPELINE_FORWARD, 1, 1}, true, true, {2, 0}, {1, 1}},
        {2, {RK_PIPELINE_FORWARD, 1, 1}, true, false, {1, 1}, {-1, -1}},
        {2, {RK_PIPELINE_BACKWARD, 1, 1}, false, true, {-1, -1}, {1, 1}},
        {0, {RK_PIPELINE_BACKWARD, 1, 1}, true, true, {1, 1}, {2, 0}},
        {2, {RK_PIPELINE_BACKWARD, 1, 0}, true, true, {0, 1}, {1, 0}},
        {0, {RK_PIPELINE_BACKWARD, 1, 0}, true, false, {1, 0}, {-1, -1}},
    };
    struct rk_pipeline_place peer;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        assert_int_equal(rk_pipeline_recv_from(&schedule, cases[i].stage, cases[i].step, &peer),
                         cases[i].receives);
        assert_int_equal(peer.stage, cases[i].from.stage);
        assert_int_equal(peer.chunk, cases[i].from.chunk);
        assert_int_equal(rk_pipeline_send_to(&schedule, cases[i].stage, cases[i].step, &peer),
                         cases[i].sends);
        assert_int_equal(peer.stage, cases[i].to.stage);
        assert_int_equal(peer.chunk, cases[i].to.chunk);
    }
}

typedef RK_ARRAY(struct rk_pipeline_step) steps_t;

/* Messages from one stage to another, in the order in which `stage` sends or receives them, named by the
 * receiver's chunk. */
static steps_t list_channel(const struct rk_pipeline_schedule *schedule, const struct rk_pipeline_step *steps,
                            int32_t stage, int32_t peer_stage, rk_pipeline_kind_t kind, bool is_sender)
{
    steps_t list = {0};

    for (int64_t i = 0; i < rk_pipeline_schedule_num_steps(schedule); i++) {
        struct rk_pipeline_place peer;
        struct rk_pipeline_step message = steps[i];
        bool travels = is_sender ? rk_pipeline_send_to(schedule, stage, steps[i], &peer)
                                 : rk_pipeline_recv_from(schedule, stage, steps[i], &peer);

        if (!travels || peer.stage != peer_stage || steps[i].kind != kind)
            continue;
        if (is_sender)
            message.chunk = peer.chunk;
        rk_array_append(&list, message);
    }
    return list;
}

static void check_channels(const struct rk_pipeline_schedule *schedule, struct rk_pipeline_step *const *steps)
{
    for (int32_t from = 0; from < schedule->pp; from++) {
        for (int32_t to = 0; to < schedule->pp; to++) {
            for (int kind = 0; kind < RK_PIPELINE_KIND_COUNT; kind++) {
                steps_t sent = list_channel(schedule, steps[from], from, to, (rk_pipeline_kind_t)kind, true);
                steps_t received =
                    list_channel(schedule, steps[to], to, from, (rk_pipeline_kind_t)kind, false);

                assert_int_equal(sent.count, received.count);
                if (sent.count > 0)
                    assert_memory_equal(sent.items, received.items, (size_t)sent.count * sizeof(*sent.items));
                rk_array_fini(&sent);
                rk_array_fini(&received);
            }
        }
    }
}

static int64_t expected_live(const struct rk_pipeline_schedule *schedule, int32_t stage)
{
    int32_t m = schedule->num_micro_batches, behind = schedule->pp - 1 - stage;
    int32_t group = schedule->group_size ? schedule->group_size : schedule->pp;

    if (schedule->forward_only)
        return 0;
    if (schedule->vpp <= 1)
        return RK_MIN(m, behind + 1);
    return RK_MIN(m * schedule->vpp, 2 * behind + (schedule->vpp - 1) * group + 1);
}

/* Each chunk of each micro-batch once forward, then once backward. */
static void check_complete(const struct rk_pipeline_schedule *schedule, const struct rk_pipeline_step *steps)
{
    size_t count = (size_t)schedule->num_micro_batches * (size_t)schedule->vpp;
    int *seen = rk_calloc(count, sizeof(*seen));

    for (int64_t i = 0; i < rk_pipeline_schedule_num_steps(schedule); i++) {
        int *at = &seen[steps[i].micro_batch * schedule->vpp + steps[i].chunk];

        assert_int_equal(*at, steps[i].kind == RK_PIPELINE_FORWARD ? 0 : 1);
        ++*at;
    }
    for (size_t i = 0; i < count; i++)
        assert_int_equal(seen[i], schedule->forward_only ? 1 : 2);
    rk_free(seen);
}

/* Goal: for random sizes every list is complete, keeps as many activations as the formula gives, and both
 * ends of every channel have the same order of messages. */
static void test_pipeline_schedule_random_sizes(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 2);
    for (int i = 0; i < 300; i++) {
        struct rk_pipeline_schedule schedule = {
            .pp = 2 + (int32_t)rk_rng_next_below(&rng, 6),
            .vpp = 1 + (int32_t)rk_rng_next_below(&rng, 4),
            .num_micro_batches = 1 + (int32_t)rk_rng_next_below(&rng, 20),
            .forward_only = rk_rng_next_below(&rng, 4) == 0,
        };
        struct rk_pipeline_step *steps[8] = {0};

        if (rk_rng_next_below(&rng, 2))
            schedule.group_size = schedule.pp + (int32_t)rk_rng_next_below(&rng, 3);
        if (!schedule.forward_only)
            schedule.num_micro_batches = rk_pipeline_round_micro_batches(
                schedule.num_micro_batches, schedule.pp, schedule.vpp, schedule.group_size);
        for (int32_t stage = 0; stage < schedule.pp; stage++) {
            steps[stage] = make_steps(&schedule, stage);
            check_complete(&schedule, steps[stage]);
            assert_int_equal(rk_pipeline_max_live(steps[stage], rk_pipeline_schedule_num_steps(&schedule)),
                             expected_live(&schedule, stage));
        }
        check_channels(&schedule, steps);
        for (int32_t stage = 0; stage < schedule.pp; stage++)
            rk_free(steps[stage]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_schedule_lists),
        cmocka_unit_test(test_pipeline_schedule_refused),
        cmocka_unit_test(test_pipeline_schedule_round_micro_batches),
        cmocka_unit_test(test_pipeline_schedule_peers),
        cmocka_unit_test(test_pipeline_schedule_random_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
