#include "bench/options.h"

#include <stddef.h>

const struct rk_option bench_options_table[] = {
    {"device", "NAME", "cpu or cuda:N (default cuda:0); benchmarks of several ranks use N, N+1, ..."},
    {"filter", "TEXT", "only benchmarks whose name contains TEXT"},
    {"compare", "FILE",
     "JSON results of another program for comparison (bench/pytorch_baseline.py writes them)"},
    {"json", "FILE", "write the results as a JSON array, after every benchmark"},
    {"profile", NULL, "print the time of each operator of a training step, a log-prob pass and decoding"},
    {"list", NULL, "print the names and exit"},
    {"tiny", NULL,
     "use small shapes for tests: takes seconds with --device cpu; the figures are meaningless"},
    {"plugin", "FILE", "plug-in of the device (default: ../lib of the program's directory)"},
    {"help", NULL, "show this text"},
    {"version", NULL, "print the version"},
    {NULL, NULL, NULL},
};

const char bench_groups_text[] =
    "all | gemm | attention | elementwise | train | logprob | decode | ckpt | reshard | comm | rpc";
