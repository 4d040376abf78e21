#!/bin/sh
# test_scripts.sh SOURCE: goal: scripts/test.sh counts the tests that ran, and quickstart.sh parses
# its arguments and counts GPUs. Method: the scripts in a temporary directory with fake programs:
# bootstrap, cmake, ctest (each preset has the labels of PRESETS), find (the machine has the GPUs of
# GPUS) and rankctl (prints its arguments).
set -eu
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/scripts" "$root/play" "$root/build/bin" "$root/build/lib"
cp "$1/scripts/test.sh" "$1/scripts/quickstart.sh" "$root/scripts"
touch "$root/build/lib/librankd_cuda.so"

play() { # file
    printf '#!/bin/sh\n' >"$root/$1"
    cat >>"$root/$1"
    chmod +x "$root/$1"
}
play scripts/bootstrap.sh </dev/null
play play/cmake </dev/null
play build/bin/rankctl <<'SH'
echo "rankctl $*"
SH
play play/find <<'SH'
for i in $GPUS; do echo "/dev/nvidia$i"; done
SH
play play/ctest <<'SH'
preset=$2 # its log of all output is in the folder of the build, as ctest's
shift 4 # --preset X -j N
run=
for label in $(eval echo "\$LABELS_$preset"); do
    is_chosen=yes
    i=1
    while [ $i -lt $# ]; do
        eval "option=\${$i} pattern=\${$((i + 1))}"
        if echo "$label" | grep -qE "$pattern"; then found=-L; else found=-LE; fi
        [ $option = $found ] || is_chosen=
        i=$((i + 2))
    done
    [ -z "$is_chosen" ] || run="$run $label"
done
[ -n "$run" ] || { echo "No tests were found!!!"; exit 0; }
bad=$(echo "$run" | grep -c broken)
[ "$preset" = dev ] && all=$ROOT/build/dev/Testing/Temporary/LastTest.log || all=$ROOT/build/Testing/Temporary/LastTest.log
mkdir -p "${all%/*}"
for label in $run; do
    echo "1/1 Test: test_$label" >&3
    case $label in
    unable*) echo " 1/1 Test   #1: test_$label ........***Skipped   0.01 sec" ;;
    esac
    case $label in
    unable_here) echo "skipped: no GPU" >&3 ;;
    cmocka) printf '[ RUN      ] test_%s\n' one two >&3 && echo "skipped: needs 2 GPUs" >&3 ;;
    python) printf 'test_import (rows.Rows.test_import)\nGoal: rows. ... skipped %s\n' "'no pyarrow'" >&3 ;;
    esac
done 3>"$all"
echo "ran$run"
echo "50% tests passed, $bad tests failed out of $(echo $run | wc -w)"
SH

failed=0
# check NAME EXIT_CODE PATTERN command...: checks its exit code and a line of its output.
check() {
    name=$1 code=$2 pattern=$3
    shift 3
    got=0
    out=$(PATH="$root/play:$PATH" "$@" 2>&1) || got=$?
    if [ "$got" -ne "$code" ] || ! printf '%s\n' "$out" | grep -qE -e "$pattern"; then
        printf '%s: exit code %s, expected %s and "%s" in:\n%s\n' "$name" "$got" "$code" "$pattern" "$out"
        failed=1
    fi
}

tests="$root/scripts/test.sh"
export ROOT="$root" LABELS_dev="unit proc learn" LABELS_release="unit proc learn gpu" GPUS=""
check "all" 0 '^3 passed, 0 failed$' "$tests"
check "one label" 0 '^1 passed, 0 failed$' "$tests" -L unit
check "a label of the other preset" 0 '^1 passed, 0 failed$' "$tests" -L learn
check "no such label" 1 'no test was chosen by: -L tpyo' "$tests" -L tpyo
LABELS_dev="unit broken" check "a failure" 1 '^2 passed, 1 failed$' "$tests"
LABELS_dev="unit unable unable" check "tests that this machine cannot run" 0 '^2 passed, 0 failed, 2 skipped$' "$tests"
LABELS_dev="unable" check "a program" 0 '^test: skipped: test_unable: without a reason$' "$tests"
LABELS_dev="unable_here" check "why" 0 '^test: skipped: test_unable_here: no GPU$' "$tests"
LABELS_dev="cmocka" check "a test of a program" 0 '^test: skipped: test_cmocka: test_two: needs 2 GPUs$' "$tests"
LABELS_dev="python" check "a Python test" 0 "^test: skipped: test_python: test_import: 'no pyarrow'$" "$tests"
LABELS_dev="cmocka python unable_here" check "all of these" 0 '^3 passed, 0 failed, 3 skipped$' "$tests"
LABELS_dev="unit unable" check "nothing but such tests" 0 '^0 passed, 0 failed, 1 skipped$' "$tests" -L unable
LABELS_dev="" check "a build without tests" 1 '^1 passed, 1 failed$' "$tests"
GPUS=3 check "a machine whose GPU is not the first" 0 '^4 passed, 0 failed$' "$tests"

quick="$root/scripts/quickstart.sh"
printf '#!/bin/sh\necho bootstrap has run\n' >"$root/scripts/bootstrap.sh"
for help in -h --help; do
    out=$("$quick" a=1 $help) || failed=1
    case $out in
    *"bootstrap has run"*) echo "quickstart.sh $help installs" && failed=1 ;;
    usage:*build/bin*) ;;
    *) echo "quickstart.sh $help prints: $out" && failed=1 ;;
    esac
done
check "no GPU needed" 0 'rankctl .* --local 4 device=cpu .*size=2$' "$quick"
check "arguments go on" 0 'device=cpu .*size=2 a=1 b=2$' "$quick" a=1 b=2
GPUS="0 1" check "two GPUs" 0 '--local 2 device=cuda .*size=2 a=1$' "$quick" --device cuda a=1
GPUS="0 1" check "with =, after others" 0 '--local 2 device=cuda .*size=2 a=1$' "$quick" a=1 --device=cuda
GPUS="3" check "one GPU" 0 '--local 1 device=cuda .*size=1$' "$quick" --device cuda
check "no GPU" 2 'there is no NVIDIA GPU' "$quick" --device cuda
check "no value" 2 'expected cpu or cuda' "$quick" a=1 --device
check "no such device" 2 '--device tpu: expected cpu or cuda' "$quick" --device tpu
export GPUS="0 1 2 3"
CUDA_VISIBLE_DEVICES="" check "none visible" 2 'there is no NVIDIA GPU' "$quick" --device cuda
CUDA_VISIBLE_DEVICES=2 check "one visible" 0 '--local 1 ' "$quick" --device cuda
CUDA_VISIBLE_DEVICES=0,GPU-12ab,-1,3 check "two before an end" 0 '--local 2 ' "$quick" --device cuda
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5 check "more than there are" 0 '--local 4 ' "$quick" --device cuda
CUDA_VISIBLE_DEVICES=NoDevFiles check "no device" 2 'there is no NVIDIA GPU' "$quick" --device cuda
exit $failed
