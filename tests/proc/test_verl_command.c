/* verl's command lines, of every form in docs/verl-commands.md, and scripts with the launchers of rankctl
 * verl-env. */
#include "tests/proc/cli_fixture.h"

#define DIGITS RK_TEST_SOURCE_DIR "/examples/digits/"
#define HERE   "cd " DIGITS " && "

/* The digits example in verl's words; of the RL trainer, and of the SFT trainer. */
#define RL                                                                                                 \
    " algorithm.adv_estimator=grpo data.train_files=train.jsonl data.train_batch_size=4"                   \
    " data.max_prompt_length=8 data.max_response_length=8 "                                                \
    "actor_rollout_ref.model.hf_config_path=config.json"                                                   \
    " actor_rollout_ref.model.tokenizer_path=tokenizer.json actor_rollout_ref.actor.ppo_mini_batch_size=2" \
    " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.name=vllm"          \
    " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.n=4"         \
    " actor_rollout_ref.model.use_remove_padding=False actor_rollout_ref.actor.use_torch_compile=False"    \
    " reward.name=digits trainer.total_training_steps=1"
#define SFT                                                                                    \
    " data.train_files=sft.jsonl data.max_length=64 model.hf_config_path=config.json"          \
    " model.tokenizer_path=tokenizer.json engine=fsdp engine.ulysses_sequence_parallel_size=1" \
    " trainer.total_training_steps=1"
#define NAMED " +distillation.teacher_models."
#define TEACHERS                                                                                            \
    " distillation.enabled=True distillation.teacher_key=data_source" NAMED "math.key=digits" NAMED         \
    "math.model_path=m" NAMED "code.model_path=c" NAMED "code.inference.tensor_model_parallel_size=2" NAMED \
    "code.num_replicas=1"
#define RAY      " ++ray_kwargs.ray_init.runtime_env.env_vars.A=secret +ray_init.runtime_env.env_vars=secret"
#define MAIN_PPO "-m verl.trainer.main_ppo"
#define DRY      "$rankctl verl --dry-run "

static const struct shell_case forms[] = {
    /* Launchers. */
    {HERE DRY "-- python3 " MAIN_PPO RL " trainer.n_gpus_per_node=2", 0, "\"adv_estimator\": \"grpo\"",
     "rankctl: verl.trainer.main_ppo is algorithm.type=rl, on 2 daemons, device cuda\n"},
    {HERE DRY "-- python3 " MAIN_PPO RL, 0, NULL, "on 8 daemons"},
    {HERE DRY "-- python3 -u " MAIN_PPO RL, 0, NULL, "on 8 daemons"},
    {HERE DRY "-- uv run --frozen --all-packages --extra vllm python3 " MAIN_PPO RL, 0, NULL,
     "left out: uv --frozen --all-packages --extra -m\n"},
    {HERE DRY "-- env HYDRA_FULL_ERROR=1 python3 " MAIN_PPO RL, 0, NULL,
     "left out: env HYDRA_FULL_ERROR=... python3 -m\n"},
    {HERE DRY "-- VLLM_USE_V1=1 python3 -m verl.trainer.main_ppo_sync" RL, 0, NULL, "main_ppo_sync is"},
    {HERE DRY "-- ray job submit --no-wait --runtime-env=env.yaml --working-dir . -- python3 -m "
              "recipe.dapo.main_dapo" RL,
     0, "\"name\": \"rankd\"", "recipe.dapo.main_dapo is algorithm.type=rl"},
    {HERE DRY "-- python3 verl/trainer/main_ppo.py" RL, 0, NULL, "verl.trainer.main_ppo is"},
    {HERE DRY "-- python3 /opt/verl/verl/trainer/main_ppo.py" RL, 0, NULL, "verl.trainer.main_ppo is"},
    {HERE DRY "-- torchrun --standalone --nnodes=1 --nproc_per_node=4 -m verl.trainer.sft_trainer" SFT, 0,
     "\"train_batch_size\": 256", "verl.trainer.sft_trainer is algorithm.type=sft, on 4 daemons"},
    {HERE DRY "-- torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0 -m verl.trainer.sft_trainer" SFT, 0,
     "\"total_epochs\": 4", "on 4 daemons"},
    {HERE DRY "-- torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=sft.jsonl "
              "actor_rollout_ref.model.path=m",
     0, "\"lr\": 0.001", "on 1 daemons"},
    {HERE DRY "-- torchrun --nnodes=2 --node_rank=1 -m verl.trainer.sft_trainer" SFT, 0, "",
     "nothing to do on node 1"},
    /* Configuration files, and what comes from where. */
    {HERE DRY "-- python3 " MAIN_PPO " --config-path=config --config-name=ppo_megatron_trainer" RL, 0, NULL,
     "--config-name=ppo_megatron_trainer: not read"},
    {HERE DRY "-- python3 " MAIN_PPO " --config-name ppo_trainer" RL, 0, NULL, "ppo_trainer: not read"},
    {HERE DRY "device=cpu -- python3 " MAIN_PPO RL, 0, "\"device\": \"cpu\"", "device cpu"},
    {HERE DRY "-- python3 " MAIN_PPO RL " device=cpu", 0, "\"device\": \"cpu\"", "device cpu"},
    {HERE "RANKCTL_JOB_DEVICE=cpu " DRY "-- python3 " MAIN_PPO RL, 0, "\"device\": \"cpu\"", "device cpu"},
    {HERE DRY "-- python3 " MAIN_PPO RL " trainer.device=cpu", 0, "\"device\": \"cpu\"", NULL},
    {HERE DRY "trainer.total_training_steps=9 -- python3 " MAIN_PPO RL, 0, "\"total_training_steps\": 9",
     NULL},
    {HERE DRY "--local 2 -- python3 " MAIN_PPO RL " trainer.n_gpus_per_node=8 trainer.nnodes=4", 0, NULL,
     "the command is for 4 x 8 GPUs; the run has 2 daemons"},
    {HERE DRY "--hosts a:1,b:1 -- python3 " MAIN_PPO RL, 0, NULL, "on 2 daemons"},
    /* Teachers of any names. */
    {HERE DRY "-- python3 " MAIN_PPO RL TEACHERS NAMED "code.key=codeforces", 0, "\"key\": \"codeforces\"",
     "other key  distillation.teacher_2.model.path: "},
    /* The job is a file for rankctl run, with absolute paths. */
    {HERE DRY "--local 2 -- python3 " MAIN_PPO RL
              " 2>/dev/null | (cd / && $rankctl config check - --world 2)",
     0, "is fine", NULL},
    {HERE DRY "--local 2 -- torchrun -m verl.trainer.sft_trainer" SFT
              " 2>/dev/null | (cd / && $rankctl config show -)",
     0, "\"" DIGITS "sft.jsonl\"", NULL},
    {HERE DRY "--output=json -- python3 " MAIN_PPO RL, 0, "\"kind\": \"Verl\"", NULL},
    /* No value that may be a secret is printed. */
    {HERE DRY
     "-- WANDB_API_KEY=secret ray job submit --runtime-env-json='{\"env_vars\": {\"A\": \"secret\"}}' "
     "--headers '{\"A\": \"secret\"}' -Hsecret -- env WANDB_API_KEY=secret python3 " MAIN_PPO RL RAY,
     0, NULL, "left out: WANDB_API_KEY=... ray --runtime-env-json=... --headers -H... -- -m\n"},
    {HERE DRY "-- python3 " MAIN_PPO RL RAY, 0, NULL, "ray_kwargs.ray_init.runtime_env.env_vars.A=...  "},
    {HERE "! { " DRY "--output=json -- env A=secret python3 " MAIN_PPO RL RAY " 2>&1 | grep secret; }", 0, "",
     NULL},
    {"! { " DRY "-- A=secret python3 2>&1 | grep secret; }", 0, "", NULL},
    /* The table. */
    {HERE DRY "-- python3 " MAIN_PPO RL, 0, NULL, "no effect  sequences are always packed\n"},
    {HERE DRY "-- python3 " MAIN_PPO RL, 0, NULL, "other key  actor_rollout_ref.rollout.name=\"rankd\": "},
    {HERE DRY "-- torchrun -m verl.trainer.sft_trainer" SFT, 0, NULL,
     "other key  actor_rollout_ref.actor.megatron.context_parallel_size: "},
};

static const struct shell_case wrong[] = {
    {DRY "python3 " MAIN_PPO, 2, NULL, "expected -- and verl's command after it"},
    {DRY "--", 2, NULL, "expected -- and verl's command after it"},
    {DRY "-- ls -l", 2, NULL, "the command ls: expected a command that runs one of verl.trainer.main_ppo, "},
    {DRY "-- python3 -m verl.trainer.mian_ppo", 2, NULL, "module verl.trainer.mian_ppo: expected a command"},
    {DRY "-- python3 -m verl.model_merger merge", 2, NULL, "does not run verl.model_merger; a run leaves"},
    {DRY "-- python3 -m verl.trainer.main_generation_server", 2, NULL, "trainer.val_only=True"},
    {DRY "-- python3 " MAIN_PPO " --multirun", 2, NULL,
     "'--multirun' after verl.trainer.main_ppo: expected KEY"},
    {DRY "-- python3 " MAIN_PPO " fast", 2, NULL, "'fast' after verl.trainer.main_ppo: expected KEY=VALUE"},
    {HERE DRY "-- python3 " MAIN_PPO RL " data.trian_files=a", 2, NULL,
     "flag: data.trian_files: unknown key; did you mean 'train_files'?"},
    {HERE DRY "-- python3 " MAIN_PPO RL TEACHERS, 2, NULL,
     "set distillation.teacher_2.key: of several teachers"},
    {HERE DRY "--local 3 -- python3 " MAIN_PPO RL, 2, NULL, "on 3 daemons: data.train_batch_size=4"},
    {HERE DRY "--local x -- python3 " MAIN_PPO RL, 2, NULL, "--local=x: expected a number of daemons"},
    {HERE DRY "-- python3 " MAIN_PPO RL " trainer.nnodes=4611686018427387904", 2, NULL,
     "trainer.nnodes=4611686018427387904: expected 1 to 4096"},
    {HERE DRY "-- python3 " MAIN_PPO RL " trainer.n_gpus_per_node=0", 2, NULL,
     "trainer.n_gpus_per_node=0: expected 1 to 4096"},
    {DRY "-- torchrun --nnodes=9999 -m verl.trainer.sft_trainer", 2, NULL,
     "--nnodes=9999: expected 1 to 4096"},
    {DRY "-- torchrun --nproc_per_node=-1 -m verl.trainer.sft_trainer", 2, NULL,
     "--nproc_per_node=-1: expected 1 to 4096"},
    {HERE "$rankctl verl -- python3 " MAIN_PPO RL " trainer.nnodes=2", 2, NULL,
     "the command is for 2 nodes of 8 GPUs: give the daemons with --hosts"},
};

/* A script of verl's users: it starts Ray, prepares data with Python, and has its launcher in an array. */
#define SCRIPT                                                                                 \
    "cat >run.sh <<'end'\nset -e\nray start --head\npython3 -c 'print(\"pre\" + \"pared\")'\n" \
    "PYTHONUNBUFFERED=1 python3 " MAIN_PPO RL " trainer.n_gpus_per_node=2 \"$@\" 2>&1 | tee log\nend\n"
#define IN_DIR "mkdir \"$dir\" && cp " DIGITS "*.json* \"$dir\" && cd \"$dir\" && " SCRIPT
#define SHIMS  "PATH=\"$($rankctl verl-env \"$dir/a 'b'\"):/usr/bin:/bin\" "

static const struct shell_case scripts[] = {
    {IN_DIR "RANKCTL_VERL='device=cpu --run-dir run' " SHIMS "sh run.sh trainer.logger=[] && "
            "test -f run/hf/model.safetensors",
     0, "prepared", "ray: not installed, and rankd does not need it: ray start --head is left out"},
    {IN_DIR "RANKCTL_VERL='--dry-run device=cpu' " SHIMS "sh run.sh", 0, "on 2 daemons, device cpu", NULL},
    {"mkdir \"$dir\" && " SHIMS "sh -c 'python3 -c \"import sys; print(sys.argv)\" verl x \"a b\"'", 0,
     "['-c', 'verl', 'x', 'a b']", NULL},
    {"mkdir \"$dir\" && " SHIMS "torchrun --version", 127, NULL, "torchrun: not found"},
    {"mkdir \"$dir\" && " SHIMS "torchrun --nproc_per_node 2 -m verl.trainer.sft_trainer data=1 2>&1", 2,
     "data: ", NULL},
    {"test \"$($rankctl verl-env)\" = \"$($rankctl verl-env)\"", 0, NULL, NULL},
    {"env -u HOME -u XDG_STATE_HOME $rankctl verl-env", 2, NULL, "expected a DIR"},
    {"mkdir \"$dir\" && " SHIMS "python3 -m verl.model_merger merge", 2, NULL,
     "does not run verl.model_merger"},
    {"mkdir \"$dir\" && " SHIMS "python3 a/recipe/dapo/main_dapo.py fast", 2, NULL,
     "'fast' after recipe.dapo.main_dapo"},
    /* A program of the user stays, and nothing is written beside it; scripts of this command are renewed. */
    {"mkdir \"$dir\" && echo mine >\"$dir/uv\" && $rankctl verl-env \"$dir\"", 2, NULL,
     "/uv' exists and was not made by rankctl verl-env"},
    {"mkdir \"$dir\" && echo mine >\"$dir/uv\" && ! $rankctl verl-env \"$dir\" && ls \"$dir\" && cat "
     "\"$dir/uv\"",
     0, "uv\nmine\n", NULL},
    {"mkdir \"$dir\" && $rankctl verl-env \"$dir\" && $rankctl verl-env \"$dir\"", 0, NULL, NULL},
    {"$rankctl verl-env /dev/null/x", 2, NULL, "/dev/null"},
};

static void test_forms_of_the_page(void **state)
{
    (void)state;
    run_shell_cases(forms, sizeof(forms) / sizeof(*forms));
}

static void test_what_is_no_command_of_verl(void **state)
{
    (void)state;
    run_shell_cases(wrong, sizeof(wrong) / sizeof(*wrong));
}

static void test_scripts_run_unchanged(void **state)
{
    (void)state;
    run_shell_cases(scripts, sizeof(scripts) / sizeof(*scripts));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms_of_the_page),
        cmocka_unit_test(test_what_is_no_command_of_verl),
        cmocka_unit_test(test_scripts_run_unchanged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
