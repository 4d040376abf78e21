#!/bin/sh
# Builds and runs the whole test suite: the dev preset (debug, ASan and UBSan, fault points) and, on the release
# binaries, which have the CUDA plug-in where nvcc is found, the tests that learn, the bundle and, where there is a GPU,
# those of the GPU. Closing line: "N passed, N failed". Arguments go to ctest and choose among all these tests (e.g.
# -L unit): what they leave nothing of is skipped, but something there must be. Tests of the label long run only when
# they are asked for (-L long).
set -u
cd "$(dirname "$0")/.."
scripts/bootstrap.sh || exit 2

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0
chosen=$# # whether there are arguments

build() { # preset
    echo "test: building preset $1"
    if ! { cmake --preset "$1" && cmake --build --preset "$1"; } >"$log" 2>&1; then
        tail -n 60 "$log"
        echo "test: the build of preset $1 failed"
        echo "$passed passed, $((failed + 1)) failed"
        exit 1
    fi
    sed -n 's/^-- \(CUDA plug-in: .*\)/test: \1/p' "$log"
}

# Half as many tests again as there are cores: many of them wait most of their time for a timeout to come.
jobs=$((($(nproc) * 3 + 1) / 2))

run() { # preset, ctest arguments
    preset=$1
    shift
    ctest --preset "$preset" -j "$jobs" "$@" >"$log" 2>&1
    cat "$log"
    total=$(sed -n 's/^.* tests failed out of \([0-9]*\)$/\1/p' "$log" | tail -n 1)
    bad=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests failed out of .*$/\1/p' "$log" | tail -n 1)
    if [ "${total:-0}" -eq 0 ]; then
        echo "test: preset $preset ran no test"
        if [ "$chosen" -gt 0 ] && grep -q '^No tests were found' "$log"; then
            return
        fi
        failed=$((failed + 1))
        return
    fi
    passed=$((passed + total - bad))
    failed=$((failed + bad))
}

build dev
run dev -LE 'learn|bundle|gpu|long' "$@"
build release
run release -L 'learn|bundle' -LE long "$@"
if [ -n "$(find /dev -maxdepth 1 -name 'nvidia[0-9]*')" ] && [ -e build/lib/librankd_cuda.so ]; then
    run release -L gpu -LE long "$@"
fi
case " $* " in
*long*) run release -L long ;;
esac

if [ "$((passed + failed))" -eq 0 ]; then
    echo "test: no test was chosen by: $*"
    failed=1
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
