/* rankd_bench_manual PAGE FILE: writes rankd-bench.1 from the table of options. Part of the build, not
 * installed. */
#include "base/config/rk_manual.h"
#include "bench/options.h"
#include "generated/rk_version.h"

static void format_bench(struct rk_str *out)
{
    static const struct rk_exit_code codes[] = {
        {0, "success"},
        {1, "a benchmark failed, or the device cannot be opened"},
        {2, "wrong usage, or a file cannot be read or written"},
    };

    rk_manual_begin(out, "rankd-bench", 1, RK_VERSION, "measures rankd on this machine");
    rk_manual_section(out, "SYNOPSIS");
    rk_manual_text(out, "rankd-bench [options] GROUP");
    rk_manual_section(out, "DESCRIPTION");
    rk_manual_text(
        out, "Measures the operators and calls of rankd, and prints each figure beside the bound of the "
             "hardware. Groups of benchmarks:");
    rk_manual_text(out, bench_groups_text);
    rk_manual_section(out, "OPTIONS");
    rk_manual_options(out, bench_options_table);
    rk_manual_exit_codes(out, codes, sizeof(codes) / sizeof(codes[0]));
    rk_manual_section(out, "SEE ALSO");
    rk_manual_text(out, "rankctl(1), rankd(8)");
}

int main(int argc, char **argv)
{
    static const struct rk_manual_page pages[] = {{"rankd-bench.1", format_bench}, {NULL, NULL}};

    return rk_manual_main(pages, argc, argv);
}
