#!/bin/sh
# From a fresh checkout to a trained model: installs packages, builds, starts daemons and trains the digits example with
# GRPO. On four CPU daemons (tp=2, dp=2), or with --device cuda on the GPUs of this machine (1, 2 or
# 4 of those in CUDA_VISIBLE_DEVICES), which needs nvcc. Other arguments are passed on to rankctl
# run, e.g. actor_rollout_ref.actor.megatron.seed=7.
set -eu
cd "$(dirname "$0")/.."

# CUDA ignores CUDA_VISIBLE_DEVICES from the first invalid entry on.
count_gpus() {
    gpus=$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' | wc -l)
    if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
        visible=$(printf '%s\n' "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' |
            awk '!/^ *([0-9]+|GPU-.*|MIG-.*) *$/ { exit } { n++ } END { print n + 0 }')
        [ "$visible" -ge "$gpus" ] || gpus=$visible
    fi
    echo "$gpus"
}

usage() {
    cat <<'END'
usage: scripts/quickstart.sh [--device cpu|cuda] [KEY=VALUE ...]

Installs the distribution's packages (the first part of scripts/packages.txt), builds rankd and rankctl in build/, and trains the digits
example with GRPO on daemons that it starts and stops.

  --device cpu     four daemons on the CPU (the default)
  --device cuda    1, 2 or 4 daemons on the GPUs of this machine; needs nvcc
  KEY=VALUE        and other arguments go to rankctl run, for example trainer.total_training_steps=10

The programs stay in build/bin: build/bin/rankctl run --help lists all keys of a job.
END
}

device=cpu
previous=
for arg; do
    case $arg in
    -h | --help) usage && exit ;;
    esac
done
for arg; do # arguments for rankctl are moved to the end
    shift
    case $previous,$arg in
    --device,*) device=$arg previous= && continue ;;
    *,--device) device= ;;
    *,--device=*) device=${arg#--device=} ;;
    *) set -- "$@" "$arg" ;;
    esac
    previous=$arg
done
case $device in
cpu)
    daemons=4 tp=2 targets="rankd rankctl"
    ;;
cuda)
    gpus=$(count_gpus)
    targets="rankd rankctl rankd_cuda"
    if [ "$gpus" -ge 4 ]; then
        daemons=4 tp=2
    elif [ "$gpus" -ge 2 ]; then
        daemons=2 tp=2
    elif [ "$gpus" -eq 1 ]; then
        daemons=1 tp=1
    else
        echo "quickstart: --device cuda: there is no NVIDIA GPU (/dev/nvidia0, CUDA_VISIBLE_DEVICES)" >&2
        exit 2
    fi
    ;;
*)
    echo "quickstart: --device $device: expected cpu or cuda" >&2
    exit 2
    ;;
esac

scripts/bootstrap.sh --build
echo "quickstart: building (release, in build/)"
# shellcheck disable=SC2086 # one word a target
cmake --preset release -DRK_TESTS=OFF >build-quickstart.log 2>&1 &&
    cmake --build --preset release --target $targets >>build-quickstart.log 2>&1 || {
    tail -n 30 build-quickstart.log >&2
    echo "quickstart: the build failed; the whole log is in build-quickstart.log" >&2
    exit 1
}
rm -f build-quickstart.log
echo "quickstart: the programs are in $(pwd)/build/bin"
exec build/bin/rankctl run examples/digits/grpo.json --local "$daemons" "device=$device" \
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$tp" "$@"
