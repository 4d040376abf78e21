#!/bin/sh
# test_bundle.sh ARCHIVE: goal: the bundle runs without installed packages. Method: a root with only
# the C library and the bundle, and an empty environment; prints the version and runs two steps of
# the example with --local daemons. Exits with 77 if namespaces are not allowed.
set -eu
archive=$1

enter="unshare --mount"
if ! $enter true 2>/dev/null; then
    enter="unshare --mount --user --map-root-user"
    if ! $enter true 2>/dev/null; then
        echo "skipped: this user may not make namespaces"
        exit 77
    fi
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir "$root/proc" "$root/dev" "$root/tmp" "$root/opt"
tar -C "$root/opt" -xzf "$archive"
bundle=/opt/$(basename "$archive" .tar.gz)

# The C library's files, at the paths where this system's loader searches them.
ldd "$root$bundle/bin/rankd" "$root$bundle/bin/rankctl" | grep -oE '/[^ ]*/(ld-linux[^ ]*|lib(c|m|mvec|dl|rt|pthread|resolv)\.so\.[0-9]+)' |
    sort -u | while read -r path; do
        mkdir -p "$root$(dirname "$path")"
        cp -L "$path" "$root$path"
    done

# dev and proc are this machine's: the mounts end with the namespace.
run() {
    # shellcheck disable=SC2086 # words
    $enter sh -c '
        root=$1; shift
        mount --rbind /proc "$root/proc"
        mount --rbind /dev "$root/dev"
        exec env -i "$(command -v chroot)" "$root" "$@"' sh "$root" "$@"
}

run "$bundle/bin/rankctl" version
run "$bundle/bin/rankd" --version
run "$bundle/bin/rankctl" run "$bundle/share/rankd/examples/digits/grpo.json" --local 2 --quiet --run-dir /tmp/run \
    data.train_batch_size=4 actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=2 \
    trainer.total_training_steps=2
[ "$(wc -l <"$root/tmp/run/metrics.jsonl")" -eq 2 ]
[ -s "$root/tmp/run/hf/model.safetensors" ]

# The plug-in, if built: the error must be the missing driver, unless this machine has GPUs.
if [ -e "$root$bundle/lib/librankd_cuda.so" ]; then
    code=0
    run "$bundle/bin/rankd" --device=cuda:4095 2>"$root/tmp/errors" || code=$?
    cat "$root/tmp/errors"
    [ "$code" -eq 2 ]
    grep -qE "libcublasLt|driver|cuda:4095 does not exist" "$root/tmp/errors"
fi
