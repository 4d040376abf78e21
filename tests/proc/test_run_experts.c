/* Short runs of the digits job with experts, which the tp ranks of the rollout divide as whole ones: the
 * first step equals that of one rank, with weights of its own and with the actor's, and strict numerics give
 * the log-probs of training. Figures of learning: test_learn_algorithms.c. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"
#include "tests/proc/layouts.h"

#define MODEL  "actor_rollout_ref.model.hf_config_path=config-moe.json"
#define TP(n)  LAYOUT_ACTOR "megatron.tensor_model_parallel_size=" #n
#define EP(n)  LAYOUT_ACTOR "megatron.expert_model_parallel_size=" #n
#define ETP(n) LAYOUT_ACTOR "megatron.expert_tensor_parallel_size=" #n
#define RTP(n) LAYOUT_ROLLOUT "tensor_model_parallel_size=" #n
#define REP(n) LAYOUT_ROLLOUT "expert_parallel_size=" #n
#define STEPS  "trainer.total_training_steps=2"

static const struct row {
    struct layout layout;
    bool moves;    /* weights, from the actor's ranks to the rollout's */
    bool is_exact; /* in strict numerics */
} rows[] = {
    {{"actor ep 2", 2, 1, 2, {TP(1), EP(2), RTP(2), REP(2)}}, true, false},
    {{"actor tp 2", 2, 2, 2, {TP(2), REP(2)}}, true, false},
    {{"actor tp 2, etp 1", 2, 2, 2, {TP(2), ETP(1), REP(2)}}, true, true},
    {{"actor tp 2, etp 1, ep 2", 2, 2, 2, {TP(2), ETP(1), EP(2), REP(2)}}, false, true},
};

/* Runs the tiny job with these keys in a new directory; rk_free it. */
static char *run_new(const char *num_daemons, const char *const *keys, const char *numerics)
{
    const char *all[LAYOUT_MAX_KEYS + 2] = {MODEL};
    char *key = rk_format("numerics=%s", numerics), *dir;

    append_args(all, RK_ARRAY_LEN(all), keys);
    dir = run_new_tiny_job(num_daemons, all, (const char *const[]){STEPS, key, NULL});
    rk_free(key);
    return dir;
}

/* Goal: the layout of the experts changes neither the samples nor the update. */
static void test_whole_experts_give_the_first_step_of_one_rank(void **state)
{
    static const char *const one[] = {TP(1), NULL};
    char *expected = run_new("1", one, "fast");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct rk_json *metrics;
        char *dir;

        if (!layout_fits(&rows[i].layout))
            continue;
        print_message("%s\n", rows[i].layout.label);
        dir = run_new(layout_local(&rows[i].layout), rows[i].layout.keys, "fast");
        layout_assert_step(dir, expected, 1);
        metrics = read_metrics(dir, 2);
        assert_int_equal(rk_json_find(metrics, "timing_s/update_weights") != NULL, rows[i].moves);
        rk_json_free(metrics);
        rk_free(dir);
    }
    rk_free(expected);
}

/* Goal: with whole experts in both, the log-probs of the rollout are those of training, bit by bit, before
 * and after an update of the weights. */
static void test_whole_experts_have_the_log_probs_of_training_in_strict(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        char *dir;

        if (!rows[i].is_exact || !layout_fits(&rows[i].layout))
            continue;
        print_message("%s\n", rows[i].layout.label);
        dir = run_new(layout_local(&rows[i].layout), rows[i].layout.keys, "strict");
        for (int64_t step = 1; step <= 2; step++) {
            struct rk_json *metrics = read_metrics(dir, step);

            assert_true(metric(metrics, "training/rollout_probs_diff_max") == 0.0);
            rk_json_free(metrics);
        }
        rk_free(dir);
    }
}

/* Goal: other numbers of ranks, and models that they do not divide, are refused by the key before daemons
 * start. */
static void test_whole_experts_that_do_not_fit_are_refused(void **state)
{
    static const struct {
        const char *keys[6], *message;
    } cases[] = {
        {{LAYOUT_MODEL, TP(1), RTP(2), REP(2)}, REP(2) ": expected 1 for a model without layers of experts"},
        {{MODEL, TP(1), RTP(3), REP(3), LAYOUT_ROLLOUT "ranks=0-2"},
         REP(3) ": expected a divisor of the 8 experts"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *keys[7] = {NULL};
        char *dir = new_run_dir();
        struct outcome outcome;

        memcpy(keys, cases[i].keys, sizeof(cases[i].keys));
        outcome = run_tiny_job(dir, i == 1 ? "4" : "2", keys, NULL);
        assert_exit(&outcome, 2);
        assert_text("stderr", outcome.err, cases[i].message);
        outcome_fini(&outcome);
        rk_free(dir);
    }
}

/* Goal: verl's ep over several replicas runs, with each replica's experts over its own ranks, and says so. */
static void test_experts_over_replicas_are_taken_as_those_of_a_replica(void **state)
{
    const char *keys[] = {MODEL, TP(1), REP(2), NULL};
    char *dir = new_run_dir();
    struct outcome outcome;

    (void)state;
    outcome = run_tiny_job(dir, "2", keys, NULL);
    assert_exit(&outcome, 0);
    assert_text("stderr", outcome.err, REP(2) " is taken as 1, tensor_model_parallel_size");
    outcome_fini(&outcome);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_experts_give_the_first_step_of_one_rank),
        cmocka_unit_test(test_whole_experts_have_the_log_probs_of_training_in_strict),
        cmocka_unit_test(test_whole_experts_that_do_not_fit_are_refused),
        cmocka_unit_test(test_experts_over_replicas_are_taken_as_those_of_a_replica),
    };

    skip_without_devices(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
