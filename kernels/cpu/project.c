/* A linear layer with few columns: scores[t][c] = x[t] . weight[c] + bias[c], each a sequential sum in
 * ascending elements, and its gradients. */
#include "kernels/cpu/cpu_internal.h"

/* Packs columns into panels of RK_PANEL, with equal elements of a panel's columns adjacent: panel p begins at
 * p * hidden_size * RK_PANEL. `row` is scratch memory for one row of the weight. */
static void load_panels(double *panels, rk_tensor_t weight, double *row)
{
    int64_t columns = weight.shape[0], hidden_size = weight.shape[1];

    for (int64_t c = 0; c < rk_panel_round_up(columns); c++) {
        if (c < columns)
            rk_cpu_load(row, weight, c, 0, hidden_size);
        for (int64_t i = 0; c >= columns && i < hidden_size; i++)
            row[i] = 0.0;
        rk_panel_set_column(panels + c / RK_PANEL * hidden_size * RK_PANEL, c % RK_PANEL, row, hidden_size);
    }
}

static void forward_row(const struct rk_project_fwd_args *args, int64_t t, const double *panels, double *x)
{
    int64_t columns = args->weight.shape[0], hidden_size = args->x.shape[1];

    rk_cpu_load(x, args->x, t, 0, hidden_size);
    for (int64_t c = 0; c < columns; c += RK_PANEL) {
        int64_t count = RK_MIN(columns - c, (int64_t)RK_PANEL);
        double sum[RK_PANEL] = {0}, bias[RK_PANEL] = {0};

        rk_panel_accumulate(sum, x, panels + c * hidden_size, hidden_size, RK_PANEL);
        if (args->bias.data)
            rk_cpu_load(bias, args->bias, 0, c, count);
        for (int64_t i = 0; i < count; i++)
            sum[i] += bias[i];
        rk_cpu_store(args->scores, t, c, sum, count);
    }
}

struct rk_status *rk_cpu_project_fwd(void *dev, void *stream, const struct rk_project_fwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t hidden_size = args->x.shape[1];
    int64_t panel_elements = rk_panel_round_up(args->weight.shape[0]) * hidden_size;

    double work =
        (1.0 + RK_WORK_F64 * (double)args->weight.shape[0]) * (double)rk_tensor_num_elements(args->x);

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, hidden_size + panel_elements));
#pragma omp parallel num_threads(rk_cpu_num_threads(cpu, work))
    {
        double *x = rk_cpu_scratch(cpu), *panels = x + hidden_size;

        load_panels(panels, args->weight, x);
#pragma omp for
        for (int64_t t = 0; t < args->x.shape[0]; t++)
            forward_row(args, t, panels, x);
    }
    return NULL;
}

/* dx = sum_c dscores[c] * weight[c], in ascending c. */
static void backward_row(const struct rk_project_bwd_args *args, int64_t t, double *dx, double *weight)
{
    int64_t hidden_size = args->x.shape[1];

    for (int64_t i = 0; i < hidden_size; i++)
        dx[i] = 0.0;
    for (int64_t c = 0; c < args->weight.shape[0]; c++) {
        double dscore = rk_cpu_load_one(args->dscores, t, c);

        rk_cpu_load(weight, args->weight, c, 0, hidden_size);
        for (int64_t i = 0; i < hidden_size; i++)
            dx[i] += dscore * weight[i];
    }
    rk_cpu_store(args->dx, t, 0, dx, hidden_size);
}

/* Elements of a row of dweight that one task sums: wide enough for contiguous loads. */
#define WEIGHT_BLOCK 64

/* dweight[c] += sum_t dscores[t][c] * x[t] for one block of elements, in ascending t, rounded once. */
static void backward_weight(const struct rk_project_bwd_args *args, int64_t c, int64_t begin, int64_t count)
{
    double sum[WEIGHT_BLOCK] = {0}, x[WEIGHT_BLOCK];

    for (int64_t t = 0; t < args->x.shape[0]; t++) {
        double dscore = rk_cpu_load_one(args->dscores, t, c);

        rk_cpu_load(x, args->x, t, begin, count);
        for (int64_t i = 0; i < count; i++)
            sum[i] += dscore * x[i];
    }
    if (!args->overwrites_dweight) {
        rk_cpu_load(x, args->dweight, c, begin, count);
        for (int64_t i = 0; i < count; i++)
            sum[i] += x[i];
    }
    rk_cpu_store(args->dweight, c, begin, sum, count);
}

struct rk_status *rk_cpu_project_bwd(void *dev, void *stream, const struct rk_project_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t hidden_size = args->x.shape[1], columns = args->weight.shape[0];
    int num_threads = rk_cpu_num_threads(cpu, (double)columns * (double)rk_tensor_num_elements(args->x));

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * hidden_size));
#pragma omp parallel for collapse(2) num_threads(num_threads)
    for (int64_t c = 0; c < columns; c++) {
        for (int64_t i = 0; i < hidden_size; i += WEIGHT_BLOCK)
            backward_weight(args, c, i, RK_MIN(hidden_size - i, (int64_t)WEIGHT_BLOCK));
    }
#pragma omp parallel for num_threads(num_threads)
    for (int64_t t = 0; t < args->x.shape[0]; t++)
        backward_row(args, t, rk_cpu_scratch(cpu), rk_cpu_scratch(cpu) + hidden_size);
    return NULL;
}
