#!/bin/sh
# test_slurm.sh BUILD_DIR SOURCE_DIR: goal: deploy/slurm/rankd.sbatch trains on the daemons of a job
# and leaves no daemon running. Method: bash runs it with the environment of a job of two nodes and
# two tasks each, whose names are addresses of this machine; srun is a function of this test that
# starts the tasks here.
set -eu
build=$1
source=$2
script=$source/deploy/slurm/rankd.sbatch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

[ "$(wc -l <"$script")" -lt 20 ]
bash -n "$script"

mkdir "$work/bin"
cat >"$work/bin/srun" <<'END'
#!/bin/sh
# Like srun: runs the command once per task, passes its output on, and waits for all.
while [ "${1#-}" != "$1" ]; do shift; done
for node in node01 node02; do
    for task in 0 1; do
        SLURMD_NODENAME=$node SLURM_LOCALID=$task "$@" &
    done
done
wait
END
chmod +x "$work/bin/srun"
printf '127.0.0.1 localhost\n10.77.1.1 node01\n10.77.1.2 node02\n' >"$work/hosts"

code=0
env HOME="$work" RUNS="$work/runs" DEVICE=cpu PATH="$work/bin:$build/bin:$PATH" SLURM_JOB_ID=7 \
    SLURM_JOB_NODELIST='node[01-02]' SLURM_TASKS_PER_NODE='2(x2)' SLURM_NTASKS_PER_NODE=2 SLURM_CPUS_PER_TASK=1 \
    OMP_WAIT_POLICY=passive \
    sh "$(dirname "$0")/netns.sh" "$work/hosts" timeout -k 5 200 bash "$script" "$source/examples/digits/grpo.json" \
    data.train_batch_size=4 actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=2 \
    trainer.total_training_steps=2 >"$work/log" 2>&1 || code=$?
[ "$code" -ne 77 ] || { cat "$work/log"; exit 77; }
[ "$code" -eq 0 ] || { cat "$work/log"; echo "the script ended with $code"; exit 1; }
[ "$(wc -l <"$work/runs/7/run/metrics.jsonl")" -eq 2 ]
[ -s "$work/runs/7/run/hf/model.safetensors" ]
[ "$(stat -c %a "$work/runs/7/tokens")" = 600 ]
[ "$(grep -c '^rankd: listening on 10.77.1' "$work/log")" -eq 4 ]
