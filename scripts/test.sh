#!/bin/sh
# Builds and runs the whole test suite: the dev preset (debug, ASan and UBSan, fault points) and,
# with the release binaries (with the CUDA plug-in if nvcc is found), the tests that train (label
# learn), the bundle and, with a GPU, the GPU tests. Last line: "N passed, N failed", and ", N skipped" if this machine
# cannot do what some tests need: what was skipped, and why, is listed above it, whole programs and single tests or parts
# of programs that passed otherwise. Arguments are passed to ctest and select among all these tests (e.g.
# -L unit): parts without a selected test are left out; selecting no test at all is an error. Tests
# with the label long run only on request (-L long).
set -u
cd "$(dirname "$0")/.."
scripts/bootstrap.sh || exit 2

log=$(mktemp)
skipped=$(mktemp) # a line each
trap 'rm -f "$log" "$skipped"' EXIT
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

# 1.5 tests per core: many tests mostly wait for timeouts.
jobs=$((($(nproc) * 3 + 1) / 2))

# Programs, tests of cmocka and of Python's unittest, and parts of them that were skipped, by ctest's log of all output
# and by what it prints.
list_skipped() { # folder of the build
    awk '/^[0-9]+\/[0-9]+ Test: / { name = program = $3 }
        /^\[ RUN      \] / { name = program ": " $4 }
        /^test_[A-Za-z0-9_]+ \(/ { name = program ": " $1 }
        sub(/^skipped: /, "") { print name ": " $0; has_reason[program] = 1 }
        sub(/^.* \.\.\. skipped /, "") { print name ": " $0 }
        sub(/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /, "") && /\*\*\*Skipped/ && !has_reason[$1] {
            print $1 ": without a reason"
        }' "$1/Testing/Temporary/LastTest.log" "$log"
}

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
    missed=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#[0-9]+: .*\*\*\*Skipped' "$log") # ctest counts them as passed
    passed=$((passed + total - bad - missed))
    failed=$((failed + bad))
    if [ "$preset" = release ]; then list_skipped build; else list_skipped "build/$preset"; fi >>"$skipped"
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

num_skipped=$(wc -l <"$skipped")
if [ "$((passed + failed + num_skipped))" -eq 0 ]; then
    echo "test: no test was chosen by: $*"
    failed=1
fi
counts="$passed passed, $failed failed"
if [ "$num_skipped" -gt 0 ]; then
    sed 's/^/test: skipped: /' "$skipped"
    counts="$counts, $num_skipped skipped"
fi
echo "$counts"
[ "$failed" -eq 0 ]
