/* Short runs of the digits job with four layers on every layout of tp, cp, dp and pp: the first step equals
 * that of one rank, and checkpoints can be resumed on other layouts. Whole learning runs:
 * test_learn_layouts.c. */
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"
#include "tests/proc/layouts.h"

/* Several micro-batches for each replica, so that pipelines fill. */
#define KEYS LAYOUT_MODEL, LAYOUT_ACTOR "ppo_max_token_len_per_gpu=32"

/* Runs the tiny job with `more`, NULL-terminated, in directory `dir`. */
static void run_in(const struct layout *layout, const char *dir, const char *const *more)
{
    const char *keys[LAYOUT_MAX_KEYS + 4] = {KEYS};
    struct outcome outcome;

    append_args(keys, RK_ARRAY_LEN(keys), layout->keys);
    outcome = run_tiny_job(dir, layout_local(layout), keys, more);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
}

/* Runs the job in a new directory, which it returns (rk_free it). */
static char *run_new(const struct layout *layout, const char *const *more)
{
    char *dir = new_run_dir();

    print_message("%s\n", layout->label);
    run_in(layout, dir, more);
    return dir;
}

/* Goal: the layout does not change the first step; later ones may differ in tokens once rounding differs. */
static void test_layouts_give_the_first_step_of_one_rank(void **state)
{
    int64_t count;
    const struct layout *rows = layouts(&count);
    static const char *const more[] = {"trainer.total_training_steps=1", NULL};
    char *expected_dir = run_new(&rows[0], more);

    (void)state;
    for (int64_t i = 1; i < count; i++) {
        char *dir;

        if (!layout_fits(&rows[i]))
            continue;
        dir = run_new(&rows[i], more);
        layout_assert_step(dir, expected_dir, 1);
        rk_free(dir);
    }
    rk_free(expected_dir);
}

#define DUMP "dump/1.jsonl" /* samples of the first step, with all digits of log-probs */

/* Runs one step in strict numerics; returns the run directory, with the dump. */
static char *run_strict(const struct layout *layout)
{
    char *dir = new_run_dir(), *dump = rk_path_join(dir, "dump");
    char *key = rk_format("trainer.rollout_data_dir=%s", dump);
    struct rk_json *metrics;

    print_message("%s\n", layout->label);
    run_in(layout, dir,
           (const char *const[]){"trainer.total_training_steps=1", "numerics=strict", key, NULL});
    metrics = read_metrics(dir, 1);
    assert_true(layout->tp != layout->rollout_tp ||
                metric(metrics, "training/rollout_probs_diff_max") == 0.0);
    rk_json_free(metrics);
    rk_free(key);
    rk_free(dump);
    return dir;
}

/* The first layout with the same tp of actor and rollout. */
static int64_t base_of(const struct layout *rows, int64_t i)
{
    int64_t base = 0;

    while (rows[base].tp != rows[i].tp || rows[base].rollout_tp != rows[i].rollout_tp)
        base++;
    return base;
}

/* Goal: in strict numerics cp, dp, pp and sequence parallelism do not change a bit of forward passes: the
 * log-probs of the rollout equal those of the same tp, and those of training. */
static void test_layouts_of_a_tp_have_the_same_bits_in_strict(void **state)
{
    int64_t count;
    const struct layout *rows = layouts(&count);
    char **dirs = rk_calloc((size_t)count, sizeof(*dirs));

    (void)state;
    for (int64_t i = 0; i < count; i++) {
        int64_t base = base_of(rows, i);

        if (!layout_fits(&rows[i]))
            continue;
        dirs[i] = run_strict(&rows[i]);
        if (base != i)
            assert_same_file(dirs[i], dirs[base], DUMP);
    }
    for (int64_t i = 0; i < count; i++)
        rk_free(dirs[i]);
    rk_free(dirs);
}

/* --- checkpoints --- */

/* Goal: runs that change their layout and change back equal an uninterrupted run on one rank: each step loads
 * the checkpoint of another layout. */
static void test_layouts_go_on_from_checkpoints_of_others(void **state)
{
    static const char *const others[] = {
        "tp 2 x pp 2",        "pp 4", "pp 2, vpp 2", "tp 2 x cp 2",
        "pp 2, vpp 2 x dp 2", "tp 2", "cp 2",        "pp 3, two layers in the last stage"};
    const struct layout *one = layout_find("one rank");
    char *straight = run_new(one, NULL);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(others); i++) {
        const struct layout *other = layout_find(others[i]);
        const struct layout *const of_step[TINY_STEPS] = {one, other, one};
        char *dir;

        if (!layout_fits(other))
            continue;
        dir = new_run_dir();
        print_message("%s, from and to one rank\n", other->label);
        for (int64_t step = 1; step <= TINY_STEPS; step++) {
            char *total = rk_format("trainer.total_training_steps=%d", (int)step);

            run_in(of_step[step - 1], dir, (const char *const[]){"trainer.save_freq=1", total, NULL});
            assert_int_equal(count_metrics(dir), step);
            layout_assert_step(dir, straight, step);
            rk_free(total);
        }
        rk_free(dir);
    }
    rk_free(straight);
}

/* --- refusals --- */

#define MESH     LAYOUT_ACTOR "megatron."
#define TP(n)    MESH "tensor_model_parallel_size=" #n
#define CP(n)    MESH "context_parallel_size=" #n
#define PP(n)    MESH "pipeline_model_parallel_size=" #n
#define VPP(n)   MESH "virtual_pipeline_model_parallel_size=" #n
#define LAST(n)  MESH "override_transformer_config.num_layers_in_last_pipeline_stage=" #n
#define RANKS    MESH "ranks="
#define SERVE(n) LAYOUT_ROLLOUT "tensor_model_parallel_size=" #n
#define SERVERS  LAYOUT_ROLLOUT "ranks="

/* Goal: a layout that the layers, the daemons or the heads do not allow is rejected with the key, the value
 * and the nearest valid one: before daemons start, or, if it depends on the model's sizes, before the model
 * is loaded. */
static void test_layouts_that_do_not_fit_are_refused(void **state)
{
    static const struct {
        struct layout layout;
        bool starts_daemons;
        const char *message;
    } cases[] = {
        {{"layers, pp", 3, 1, 1, {TP(1), PP(3)}},
         false,
         PP(3) " of role actor: 4 layers do not fit a pipeline of pp=3: the layers must be divisible by pp "
               "times "
               "vpp; nearest layout: pp=3 num_layers_in_last_pipeline_stage=2"},
        {{"layers, more stages", 8, 1, 1, {TP(1), PP(8)}},
         false,
         PP(8) " of role actor: 4 layers do not fit a pipeline of pp=8: the layers must be divisible by pp "
               "times "
               "vpp; nearest layout: pp=4"},
        {{"layers, vpp", 2, 1, 1, {TP(1), PP(2), VPP(3)}},
         false,
         "4 layers do not fit a pipeline of pp=2 vpp=3: the layers must be divisible by pp times vpp; "
         "nearest "
         "layout: pp=2 vpp=2"},
        {{"layers of the last stage", 2, 1, 1, {TP(1), PP(2), LAST(4)}},
         false,
         "do not fit a pipeline of pp=2 num_layers_in_last_pipeline_stage=4"},
        {{"vpp with one stage", 2, 2, 2, {TP(2), VPP(2)}},
         false,
         VPP(2) ": expected null, or " MESH "pipeline_model_parallel_size above 1, got 1"},
        {{"tp x cp x pp", 8, 2, 2, {TP(2), CP(3), PP(2)}},
         false,
         TP(2) " x context_parallel_size=3 x pipeline_model_parallel_size=2 does not divide the 8 daemons of "
               "the "
               "group; the nearest that does: tensor_model_parallel_size=2 x context_parallel_size=2 x "
               "pipeline_model_parallel_size=2"},
        {{"daemons without a role", 4, 2, 2, {TP(2), RANKS "0-1"}},
         false,
         "no role uses rank 2, 3 of the 4 daemons"},
        {{"a rank that is no daemon", 2, 2, 2, {TP(2), RANKS "1-2"}},
         false,
         RANKS "1-2: rank 2 has no daemon; expected each rank from 0 to 1 at most once"},
        {{"rollout over too few daemons", 4, 2, 8, {TP(2), PP(2), SERVE(8)}},
         false,
         SERVE(8) " does not divide the 4 daemons of the group; the nearest that does: "
                  "tensor_model_parallel_size=4"},
        {{"rollout over too few ranks", 4, 2, 4, {TP(2), PP(2), SERVE(4), SERVERS "0-1"}},
         false,
         SERVE(4) " does not divide the 2 ranks of " LAYOUT_ROLLOUT "ranks; the nearest that does: "
                  "tensor_model_parallel_size=2"},
        {{"heads, tp", 3, 3, 3, {TP(3)}},
         true,
         "num_attention_heads=4 is not divisible by tp=3; the nearest divisor is tp=2"},
        {{"heads, rollout", 4, 1, 3, {TP(1), PP(4), SERVE(3), SERVERS "0-2"}},
         true,
         "num_attention_heads=4 is not divisible by tp=3; the nearest divisor is tp=2"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *keys[LAYOUT_MAX_KEYS + 2] = {LAYOUT_MODEL};
        char *dir = new_run_dir(), *log = rk_path_join(dir, "rankd-0.log");
        struct outcome outcome;

        print_message("%s\n", cases[i].layout.label);
        if (cases[i].starts_daemons && !layout_fits(&cases[i].layout))
            continue;
        append_args(keys, RK_ARRAY_LEN(keys), cases[i].layout.keys);
        outcome = run_tiny_job(dir, layout_local(&cases[i].layout), keys, NULL);
        assert_exit(&outcome, 2);
        assert_text("stderr", outcome.err, cases[i].message);
        assert_null(strstr(outcome.err, "memory plan")); /* the error comes before models are loaded */
        assert_int_equal(access(log, F_OK) == 0, cases[i].starts_daemons);
        outcome_fini(&outcome);
        rk_free(log);
        rk_free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_give_the_first_step_of_one_rank),
        cmocka_unit_test(test_layouts_of_a_tp_have_the_same_bits_in_strict),
        cmocka_unit_test(test_layouts_go_on_from_checkpoints_of_others),
        cmocka_unit_test(test_layouts_that_do_not_fit_are_refused),
    };

    skip_without_devices(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
