#!/bin/sh
# From a fresh checkout to a trained model: installs packages, builds, starts daemons and trains the digits example with
# GRPO. On four CPU daemons (tp=2, dp=2), or with --device cuda on the GPUs of this machine (1, 2 or 4 of them), which
# needs nvcc. Other arguments are passed on to rankctl run, e.g. actor_rollout_ref.actor.megatron.seed=7.
set -eu
cd "$(dirname "$0")/.."

device=cpu
if [ "${1-}" = --device ]; then
    device=${2-}
    shift
    [ $# -eq 0 ] || shift
fi
case $device in
cpu)
    daemons=4 tp=2 targets="rankd rankctl"
    ;;
cuda)
    gpus=$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' | wc -l)
    targets="rankd rankctl rankd_cuda"
    if [ "$gpus" -ge 4 ]; then
        daemons=4 tp=2
    elif [ "$gpus" -ge 2 ]; then
        daemons=2 tp=2
    elif [ "$gpus" -eq 1 ]; then
        daemons=1 tp=1
    else
        echo "quickstart: --device cuda: this machine shows no NVIDIA GPU (/dev/nvidia0)" >&2
        exit 2
    fi
    ;;
*)
    echo "quickstart: --device $device: expected cpu or cuda" >&2
    exit 2
    ;;
esac

scripts/bootstrap.sh
echo "quickstart: building (release, in build/)"
# shellcheck disable=SC2086 # one word a target
cmake --preset release -DRK_TESTS=OFF >build-quickstart.log 2>&1 &&
    cmake --build --preset release --target $targets >>build-quickstart.log 2>&1 || {
    tail -n 30 build-quickstart.log >&2
    echo "quickstart: the build failed; the whole log is in build-quickstart.log" >&2
    exit 1
}
rm -f build-quickstart.log
exec build/bin/rankctl run examples/digits/grpo.json --local "$daemons" "device=$device" \
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$tp" "$@"
