/* The inner loops of strict GEMM and attention.
 *
 * Sums run over the rows, for RK_PANEL columns at a time: vector lanes are columns, which are never added to
 * one another, so no sum is reordered. */
#include "kernels/cpu/cpu_internal.h"

/* Two lanes exist on every x86-64 and AArch64. Explicit vectors, because GCC otherwise keeps the sums in
 * memory (half the speed). Wider vectors selected at run time were only 1.2x faster, which does not justify
 * the dispatch code. */
typedef double f64x2 __attribute__((vector_size(16), aligned(8), may_alias));

#define LANES 2

void rk_panel_accumulate(double *y, const double *w, const double *rows, int64_t num_rows, int64_t row_len)
{
    for (int64_t c = 0; c < row_len; c += RK_PANEL) {
        f64x2 *out = (f64x2 *)(y + c);
        f64x2 sum[RK_PANEL / LANES];

        for (int i = 0; i < RK_PANEL / LANES; i++)
            sum[i] = out[i];
        for (int64_t r = 0; r < num_rows; r++) {
            const f64x2 *row = (const f64x2 *)(rows + r * row_len + c);

            for (int i = 0; i < RK_PANEL / LANES; i++)
                sum[i] += w[r] * row[i];
        }
        for (int i = 0; i < RK_PANEL / LANES; i++)
            out[i] = sum[i];
    }
}

void rk_panel_set_column(double *panel, int64_t column, const double *values, int64_t count)
{
    for (int64_t r = 0; r < count; r++)
        panel[r * RK_PANEL + column] = values[r];
}
