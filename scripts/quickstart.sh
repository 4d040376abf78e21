#!/bin/sh
# From a fresh checkout to a trained model: installs packages, builds, starts four CPU daemons (tp=2, dp=2) and trains
# the digits example with GRPO. Arguments are passed on to rankctl run, e.g. actor_rollout_ref.actor.megatron.seed=7.
set -eu
cd "$(dirname "$0")/.."

scripts/bootstrap.sh
echo "quickstart: building (release, in build/)"
cmake --preset release -DRK_TESTS=OFF >build-quickstart.log 2>&1 && cmake --build --preset release >>build-quickstart.log 2>&1 || {
    tail -n 30 build-quickstart.log >&2
    echo "quickstart: the build failed; the whole log is in build-quickstart.log" >&2
    exit 1
}
rm -f build-quickstart.log
exec build/bin/rankctl run examples/digits/grpo.json --local 4 "$@"
