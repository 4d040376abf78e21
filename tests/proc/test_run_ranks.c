/* Whole runs whose roles use subsets of the daemons, disjoint or not. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define ACTOR  "actor_rollout_ref.actor."
#define REF    "actor_rollout_ref.ref."
#define CRITIC "critic."
#define TP     "megatron.tensor_model_parallel_size="
#define RANKS  "megatron.ranks="
#define STEPS  2

/* PPO with an actor, a rollout, a reference and a critic, on the tiny job. */
static const char *const keys[] = {"algorithm.adv_estimator=gae", ACTOR "use_kl_loss=true",
                                   "trainer.total_training_steps=2", NULL};

static struct outcome run_in(const char *dir, const char *num_daemons, const char *const *more)
{
    return run_tiny_job(dir, num_daemons, keys, more);
}

static char *run_new(const char *num_daemons, const char *const *more)
{
    char *dir = new_run_dir();
    struct outcome outcome = run_in(dir, num_daemons, more);

    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "step 2/2");
    outcome_fini(&outcome);
    return dir;
}

#define APART ACTOR TP "2", ACTOR RANKS "2-3", REF TP "1", REF RANKS "0", CRITIC TP "1", CRITIC RANKS "1"

/* Goal: the placement of roles does not change the results. */
static void test_ranks_give_the_result_of_one_rank(void **state)
{
    static const char *const one_rank[] = {ACTOR TP "1", NULL};
    static const struct {
        const char *label, *changes[8];
    } layouts[] = {
        {"every role on daemons of its own", {APART, NULL}},
        {"a critic over all daemons, and an order of its own",
         {ACTOR TP "2", ACTOR RANKS "3,1", REF TP "2", REF RANKS "1-2", CRITIC TP "2", CRITIC RANKS "0-3",
          NULL}},
        {"two replicas of the actor, one of the reference",
         {ACTOR TP "1", ACTOR RANKS "1,3", REF RANKS "2", CRITIC RANKS "0,2", NULL}},
    };
    static const char *const names[] = {"critic/score/mean", "actor/entropy",          "actor/pg_loss",
                                        "actor/grad_norm",   "actor/kl_loss",          "critic/vf_loss",
                                        "critic/grad_norm",  "critic/vf_explained_var"};
    char *expected_dir = run_new("1", one_rank);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++) {
        char *dir = run_new("4", layouts[i].changes);

        print_message("%s\n", layouts[i].label);
        for (int64_t step = 1; step <= STEPS; step++) {
            struct rk_json *metrics = read_metrics(dir, step), *expected = read_metrics(expected_dir, step);

            for (size_t j = 0; j < RK_ARRAY_LEN(names); j++)
                assert_below(names[j], fabs(metric(metrics, names[j]) - metric(expected, names[j])),
                             RK_TOL_F32_SUM * fmax(1.0, fabs(metric(expected, names[j]))));
            rk_json_free(expected);
            rk_json_free(metrics);
        }
        rk_free(dir);
    }
    rk_free(expected_dir);
}

/* When a daemon worked on a call, in milliseconds within the hour. */
struct interval {
    int64_t begin_ms, end_ms;
};

#define INTERVALS_MAX 64

/* From the lines of its log; returns the number. */
static int read_calls(struct interval *out, const char *dir, int rank)
{
    char *path = rk_format("%s/rankd-%d.log", dir, rank), *text = rk_test_read_file(path, NULL);
    int count = 0;

    for (char *rest = text, *line; (line = strsep(&rest, "\n")) && count < INTERVALS_MAX;) {
        const char *time = strchr(line, 'T'), *took = strstr(line, "Worker/Execute code=OK ms=");
        int minutes, seconds, ms;
        long long duration_ms;

        if (!took || !time || sscanf(time, "T%*d:%d:%d.%dZ", &minutes, &seconds, &ms) != 3 ||
            sscanf(took, "Worker/Execute code=OK ms=%lld", &duration_ms) != 1)
            continue;
        out[count].end_ms = (minutes * 60 + seconds) * 1000LL + ms;
        out[count].begin_ms = out[count].end_ms - duration_ms;
        count++;
    }
    rk_free(text);
    rk_free(path);
    return count;
}

static int count_overlaps(const struct interval *a, int num_a, const struct interval *b, int num_b)
{
    int count = 0;

    for (int i = 0; i < num_a; i++) {
        for (int j = 0; j < num_b; j++)
            count += a[i].begin_ms < b[j].end_ms && b[j].begin_ms < a[i].end_ms;
    }
    return count;
}

/* Goal: the passes, and the updates, of roles on separate ranks run at the same time. Method: the daemons'
 * logs tell when calls ended and how long they took. The last calls of the critic are values and update of
 * each step. */
static void test_ranks_work_at_the_same_time(void **state)
{
    static const char *const apart[] = {APART, "actor_rollout_ref.rollout.n=32", NULL};
    struct interval of_ref[INTERVALS_MAX], of_critic[INTERVALS_MAX], of_actor[INTERVALS_MAX];
    int num_ref, num_critic, num_actor, num_updates = 0;
    char *dir;

    (void)state;
    if (is_on_gpus())
        rk_test_skip("on GPUs the calls of the tiny job are shorter than the resolution of the logs");
    dir = run_new("4", apart);
    num_ref = read_calls(of_ref, dir, 0);
    num_critic = read_calls(of_critic, dir, 1);
    num_actor = read_calls(of_actor, dir, 2);
    assert_true(num_ref >= STEPS && num_critic >= 2 * STEPS && num_actor >= 2 * STEPS);
    assert_true(count_overlaps(of_ref, num_ref, of_actor, num_actor) > 0);
    assert_true(count_overlaps(of_critic, num_critic, of_actor, num_actor) > 0);
    for (int i = 0; i < STEPS; i++)
        num_updates += count_overlaps(&of_critic[num_critic - 1 - 2 * i], 1, of_actor, num_actor);
    assert_true(num_updates > 0);
    rk_free(dir);
}

/* Goal: each role's part of a checkpoint is written and read by its own daemons, bit for bit. */
static void test_ranks_runs_go_on_from_checkpoints(void **state)
{
    static const char *const whole[] = {APART, NULL};
    static const char *const half[] = {APART, "trainer.save_freq=1", "trainer.total_training_steps=1", NULL};
    static const char *const rest[] = {APART, "trainer.save_freq=1", NULL};
    char *straight = run_new("4", whole), *dir = new_run_dir();
    struct outcome outcome = run_in(dir, "4", half);

    (void)state;
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    outcome = run_in(dir, "4", rest);
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, "resuming from ");
    outcome_fini(&outcome);
    assert_same_file(dir, straight, "hf/model.safetensors");
    rk_free(straight);
    rk_free(dir);
}

/* Goal: invalid placements are rejected before a daemon starts. */
static void test_ranks_that_cannot_stand_are_refused(void **state)
{
    static const struct {
        const char *changes[5], *message;
    } cases[] = {
        {{ACTOR TP "1", REF RANKS "4"}, REF RANKS "4: rank 4 has no daemon; expected each rank from 0 to 3"},
        {{ACTOR TP "2", ACTOR RANKS "0-2"},
         ACTOR TP "2 does not divide the 3 ranks of " ACTOR
                  "megatron.ranks; the nearest that does: tensor_model_parallel_size=1"},
        {{ACTOR TP "1", ACTOR RANKS "1-3"}, "no role uses rank 0 of the 4 daemons"},
        {{ACTOR TP "1", ACTOR "megatron.pipeline_model_parallel_size=3"},
         "x pipeline_model_parallel_size=3 does not divide the 4 daemons of the group; the nearest that "
         "does: "
         "tensor_model_parallel_size=1 x pipeline_model_parallel_size=2"},
    };
    char *dir = new_run_dir();

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct outcome outcome = run_in(dir, "4", cases[i].changes);

        assert_exit(&outcome, 2);
        assert_text("stderr", outcome.err, cases[i].message);
        outcome_fini(&outcome);
    }
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_give_the_result_of_one_rank),
        cmocka_unit_test(test_ranks_work_at_the_same_time),
        cmocka_unit_test(test_ranks_runs_go_on_from_checkpoints),
        cmocka_unit_test(test_ranks_that_cannot_stand_are_refused),
    };

    skip_without_devices(4);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
