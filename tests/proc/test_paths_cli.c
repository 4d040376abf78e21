/* Paths of what rankctl writes, with names that no file system takes or that terminals interpret: refused by
 * the name of the option or the key, with nothing written and no daemon started. */
#include "tests/proc/cli_fixture.h"

/* $long has 256 bytes, $red begins with an escape sequence. */
#define NAMES                                                   \
    "mkdir \"$dir\"; cd \"$dir\" || exit 9; job=" TINY_JOB      \
    "; long=$(printf %0256d 0); red=$(printf '\\033[31mx'); "   \
    "t='data.train_batch_size=4 actor_rollout_ref.rollout.n=4 " \
    "actor_rollout_ref.actor.ppo_mini_batch_size=2'; "
#define NOTHING    "; code=$?; [ -z \"$(ls)\" ] && exit $code; exit 9"
#define IS_LONG    ": a name in it has 256 bytes, expected at most 255"
#define IS_CONTROL ": path 'new/\\x1b[31mx': has a control character"

static void test_new_paths_of_options(void **state)
{
    static const struct shell_case cases[] = {
        {NAMES "$rankctl run $job --local 2 $t --run-dir new/$long" NOTHING, 2, "", IS_LONG},
        {NAMES "$rankctl run $job --local 2 $t --run-dir new/$red" NOTHING, 2, "", "--run-dir" IS_CONTROL},
        {NAMES "$rankctl run $job --local 2 $t --record new/$red" NOTHING, 2, "", "--record" IS_CONTROL},
        {NAMES "$rankctl verl --run-dir new/$red -- python3 -m verl.trainer.main_ppo" NOTHING, 2, "",
         "--run-dir" IS_CONTROL},
        {NAMES "$rankctl debug dump --hosts localhost:1 --out new/$red" NOTHING, 2, "", "--out" IS_CONTROL},
        {NAMES "$rankctl debug dump --hosts localhost:1 --out new/$long" NOTHING, 2, "", IS_LONG},
        {NAMES "$rankctl call actor.update_actor --hosts localhost:1 --out new/$red" NOTHING, 2, "",
         "--out" IS_CONTROL},
        {NAMES "$rankctl checkpoint export --hosts localhost:1 --out new/$red" NOTHING, 2, "",
         "--out" IS_CONTROL},
        {NAMES "$rankctl certs init --hosts a --out new/$red" NOTHING, 2, "", "--out" IS_CONTROL},
        {NAMES "$rankctl verl-env new/$red" NOTHING, 2, "", "path 'new/\\x1b[31mx': has a control character"},
    };

    (void)state;
    run_shell_cases(cases, sizeof(cases) / sizeof(cases[0]));
}

static void test_new_paths_of_a_job(void **state)
{
    static const struct shell_case cases[] = {
        {NAMES "$rankctl run $job --local 2 $t --run-dir run trainer.default_local_dir=new/$red" NOTHING, 2,
         "", "trainer.default_local_dir" IS_CONTROL},
        {NAMES "$rankctl run $job --local 2 $t --run-dir run trainer.rollout_data_dir=new/$red" NOTHING, 2,
         "", "trainer.rollout_data_dir" IS_CONTROL},
        {NAMES "$rankctl run $job --local 2 $t --run-dir run trainer.rollout_data_dir=new/$long" NOTHING, 2,
         "", IS_LONG},
        {NAMES "$rankctl config check $job trainer.validation_data_dir=new/$red" NOTHING, 2, "",
         "trainer.validation_data_dir" IS_CONTROL},
        {NAMES "$rankctl plan $job --world 2 trainer.experiment_name=$long" NOTHING, 2, "",
         "trainer.experiment_name: path '0000"},
        {NAMES "$rankctl config check $job trainer.project_name=$long" NOTHING, 2, "",
         "trainer.project_name: path '0000"},
        /* A name, in which they are replaced. */
        {NAMES "$rankctl config check $job trainer.experiment_name=$red" NOTHING, 0, "", ""},
    };

    (void)state;
    run_shell_cases(cases, sizeof(cases) / sizeof(cases[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_paths_of_options),
        cmocka_unit_test(test_new_paths_of_a_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
