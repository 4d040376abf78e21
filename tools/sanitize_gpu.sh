#!/bin/sh
# The kernel tests on a GPU under compute-sanitizer: memcheck (addresses), racecheck (shared memory) and initcheck
# (reads of uninitialized memory). Usage:
#
#   tools/sanitize_gpu.sh [-t "tool ..."] [-p "program ..."] [-j jobs] [-l seconds] [folder of the tests: build/tests]
#
# Programs with large tables run in parts (RK_TEST_PART), -j at a time on one GPU (RK_TEST_DEVICE, cuda:0), each for at
# most -l seconds. racecheck keeps its records in memory, up to 30 GiB of host memory when GEMMs are tuned: by
# default one part per core runs at a time, and at most one per 24 GiB. Prints one line per tool, program and part;
# exit status 0 when all have run without findings. Logs are kept in the directory named in the first line. Kernels
# of cuBLASLt are checked too. Reports of racecheck about its nvjet kernels are in the logs but do not count as
# findings: they are about pipelines inside these kernels, which are not part of rankd.
set -u

# Programs and numbers of parts, the longest first: the tests without F64 attention. Every part
# instruments the program's kernels again, which is most of the time for many small cases.
programs="kernels_cases_gemm:8 unit_kernels_cuda_gemm_small:6 kernels_grad_layers:4 kernels_cases_sample:5 kernels_row_invariance:2
    kernels_cases_layers:2 kernels_cases_paged:2 kernels_cases_attention:2 kernels_cases_attention_split:4 kernels_thread_invariance:2
    kernels_cases_top_k:2 kernels_cases_vocab:1 kernels_cases_flat:1 kernels_cases_device:1 kernels_cases_head_norm:1
    kernels_cases_project:1"

options_of() { # tool, program
    case "$1 $2" in
    # This test allocates too much memory on purpose.
    "memcheck kernels_cases_device") echo "--report-api-errors no" ;;
    racecheck*) echo "--print-limit 100000" ;; # otherwise reports of nvjet kernels could hide others
    esac
}

# Whether racecheck found races in nvjet kernels only, and the program passed.
is_only_nvjet() { # log
    ! grep -q "returned an error\|Internal Sanitizer Error" "$1" && grep -q "Race reported" "$1" &&
        ! grep "Race reported" "$1" | grep -qv " at nvjet_"
}

run_one() { # tool, program, part
    log=$RK_LOGS/$1.$2.$(echo "$3" | tr / _).log
    begin=$(date +%s)
    quick=0
    [ "$1" = racecheck ] && quick=1 # racecheck instruments every access to shared memory, which is slow
    # shellcheck disable=SC2046 # several options are several words
    RK_TEST_PART=$3 RK_TEST_QUICK=$quick RK_TEST_DEVICE=${RK_TEST_DEVICE:-cuda:0} timeout "$RK_LIMIT" "$RK_SANITIZER" \
        --tool "$1" --error-exitcode 99 $(options_of "$1" "$2") "$RK_TESTS/$2" >"$log" 2>&1
    code=$?
    [ $code -eq 99 ] && [ "$1" = racecheck ] && is_only_nvjet "$log" && code=nvjet
    case $code in
    0) verdict=ok ;;
    nvjet) verdict="ok (nvjet)" ;;
    77) verdict="no GPU" ;;
    99) verdict=FOUND ;;
    124) verdict="TIME LIMIT" ;;
    9 | 137) verdict="KILLED" ;; # probably out of memory: run fewer at a time (-j)
    *) verdict="FAILED $code" ;;
    esac
    printf '%-10s %-28s %-5s %-10s %4d s  %s\n' "$1" "$2" "$3" "$verdict" $(($(date +%s) - begin)) \
        "$(sed -n 's/^=* *\(.*SUMMARY: .*\)/\1/p' "$log" | tail -n 1)"
    case $verdict in ok*) return 0 ;; esac
    return 1
}

if [ "${1-}" = --one ]; then
    run_one "$2" "$3" "$4"
    exit
fi

tools="racecheck memcheck initcheck"
jobs=$(awk -v cores="$(getconf _NPROCESSORS_ONLN)" '/^MemTotal/ { n = int($2 / (24 * 1024 * 1024)) }
    END { print n < 1 ? 1 : n < cores ? n : cores }' /proc/meminfo)
RK_LIMIT=600
while getopts t:p:j:l: option; do
    case $option in
    t) tools=$OPTARG ;;
    p) programs=$OPTARG ;;
    j) jobs=$OPTARG ;;
    l) RK_LIMIT=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
RK_TESTS=${1:-build/tests}
RK_SANITIZER=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer) || {
    echo "sanitize_gpu.sh: compute-sanitizer is neither in PATH nor in /usr/local/cuda/bin" >&2
    exit 2
}
[ -d "$RK_TESTS" ] || {
    echo "sanitize_gpu.sh: no folder $RK_TESTS: expected the one with the built tests" >&2
    exit 2
}
RK_LOGS=$(mktemp -d)
OPENBLAS_NUM_THREADS=1
export RK_TESTS RK_SANITIZER RK_LOGS RK_LIMIT OPENBLAS_NUM_THREADS
echo "logs: $RK_LOGS"

for program in $programs; do
    for tool in $tools; do
        count=${program#*:}
        [ "$count" != "$program" ] || count=1
        part=1
        while [ $part -le "$count" ]; do
            echo "$tool ${program%%:*} $part/$count"
            part=$((part + 1))
        done
    done
done | xargs -P "$jobs" -n 3 sh "$0" --one
