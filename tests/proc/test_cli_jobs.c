/* Jobs that are not files: from standard input, or keys alone. Every command reads them in the same way. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define DIGITS RK_TEST_SOURCE_DIR "/examples/digits/"

/* Runs a command of the shell, in which $rankctl is the program. */
static struct outcome run_shell(const char *script)
{
    char *program = rk_proc_program("rankctl");
    struct outcome outcome;

    assert_int_equal(setenv("rankctl", program, 1), 0);
    outcome = finish_rankctl(rk_proc_start((const char *const[]){"/bin/sh", "-c", script, NULL}), 120000);
    rk_free(program);
    return outcome;
}

/* The digits example as keys. */
#define KEYS                                                                                         \
    " data.train_files=" DIGITS "train.jsonl data.max_prompt_length=8 data.max_response_length=8"    \
    " data.train_batch_size=4 actor_rollout_ref.model.hf_config_path=" DIGITS "config.json"          \
    " actor_rollout_ref.model.tokenizer_path=" DIGITS "tokenizer.json actor_rollout_ref.rollout.n=4" \
    " actor_rollout_ref.actor.ppo_mini_batch_size=2 actor_rollout_ref.actor.use_dynamic_bsz=True"    \
    " algorithm.adv_estimator=grpo reward.name=digits trainer.total_training_steps=1 trainer.logger=[]"

#define JSON                                                                                 \
    "'{\"trainer\": {\"project_name\": \"piped\"}, \"model\": {\"path\": \"m\"}, \"data\": " \
    "{\"train_files\": [\"x.jsonl\"]}}'"

struct shell_case {
    const char *script;
    int code;
    const char *out, *err; /* parts; NULL: anything */
};

static const struct shell_case cases[] = {
    {"echo " JSON " | $rankctl config show -", 0, "\"piped\" (standard input:1)", NULL},
    {"echo " JSON " | $rankctl config show - trainer.project_name=b", 0, "= \"b\" (flag)", NULL},
    {"echo " JSON " | $rankctl config check -", 0, "standard input is fine", NULL},
    {"echo '{\"data\": {\"trian_files\": []}}' | $rankctl config check -", 2, NULL,
     "standard input:1: data.trian_files: unknown key; did you mean 'train_files'?"},
    {"echo '{' | $rankctl run - --local 1", 2, NULL, "standard input:"},
    {"$rankctl config check - </dev/null", 2, NULL, "standard input:"},
    {"head -c 2000000 /dev/zero | $rankctl config check -", 2, NULL,
     "'standard input' is larger than the limit of 1048576 bytes"},
    {"cd " DIGITS " && $rankctl config check - --world 2 <grpo.json", 0, "is fine", NULL},
    {"$rankctl plan --world 1" KEYS, 0, "memory plan of rank", NULL},
    {"cd " DIGITS " && $rankctl plan - --world 2 <grpo.json", 0, "memory plan of rank", NULL},
    {"cd " DIGITS " && $rankctl verify-layout - --local 2 data.train_batch_size=6 "
     "actor_rollout_ref.actor.ppo_mini_batch_size=6 actor_rollout_ref.rollout.n=2 <grpo.json",
     0, "standard input", NULL},
    {"$rankctl run --local 1 --run-dir \"$dir\"" KEYS " && test -f \"$dir/hf/model.safetensors\"", 0, NULL,
     "memory plan of rank"},
    {"HOME=" DIGITS " $rankctl config check model.path=m data.train_files='~/train.jsonl'", 0,
     "command line is fine", NULL},
};

static void test_jobs_that_are_not_files(void **state)
{
    bool is_fine = true;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct shell_case *c = &cases[i];
        char *dir = new_run_dir();
        struct outcome outcome;
        bool is_right;

        assert_int_equal(setenv("dir", dir, 1), 0);
        outcome = run_shell(c->script);
        is_right = outcome.code == c->code && (!c->out || strstr(outcome.out, c->out)) &&
                   (!c->err || strstr(outcome.err, c->err));
        if (!is_right)
            print_message("%s\nexit code %d, expected %d\nstdout: %s\nstderr: %s\n", c->script, outcome.code,
                          c->code, outcome.out, outcome.err);
        is_fine &= is_right;
        outcome_fini(&outcome);
        rk_free(dir);
    }
    assert_true(is_fine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_jobs_that_are_not_files)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
