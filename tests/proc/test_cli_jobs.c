/* Jobs that are not files: from standard input, or keys alone. Every command reads them in the same way. */
#include "tests/proc/cli_fixture.h"

#define DIGITS RK_TEST_SOURCE_DIR "/examples/digits/"

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

static const struct shell_case cases[] = {
    {"echo " JSON " | $rankctl config show -", 0, "\"piped\" (standard input:1)", NULL},
    {"echo " JSON " | $rankctl config show - trainer.project_name=b", 0, "= \"b\" (flag)", NULL},
    {"echo " JSON " | $rankctl config check -", 0, "standard input is fine", NULL},
    {"echo '{\"data\": {\"trian_files\": []}}' | $rankctl config check -", 2, NULL,
     "standard input:1: data.trian_files: unknown key; did you mean 'train_files'?"},
    {"echo '{' | $rankctl run - --local 1", 2, NULL, "standard input:"},
    {"$rankctl config check - </dev/null", 2, NULL, "standard input:"},
    {"head -c 2000000 /dev/zero | $rankctl config check -", 2, NULL, "standard input is larger than"},
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
    (void)state;
    run_shell_cases(cases, sizeof(cases) / sizeof(*cases));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_jobs_that_are_not_files)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
