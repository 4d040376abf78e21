/* GEMMs with few rows: every choice of gemm_small_sm90.cu and cuBLASLt, on the shapes of a decode step.
 * Times are of calls in a graph whose weights rotate through more memory than L2 holds; every result is
 * compared with that of gemm_chain.cu, bit by bit.
 *
 *   gemm_small_time [ROWS [SHAPE]]        64 rows and all shapes by default; SHAPE is a part of a name */
#include "bench/lab/lab_cuda.h"

#include <string.h>

#include "base/rk_alloc.h"

#define SETS_BYTES ((size_t)400 << 20)
#define MAX_CALLS  48

static const struct {
    const char *name;
    int64_t n, k;
} shapes[] = {
    {"1.5B qkv", 2048, 1536},  {"1.5B o", 1536, 1536},      {"1.5B gate_up", 17920, 1536},
    {"1.5B down", 1536, 8960}, {"head", 151936, 1536},      {"7B qkv", 4608, 3584},
    {"7B o", 3584, 3584},      {"7B gate_up", 37888, 3584}, {"7B down", 3584, 18944},
};

static struct rk_cuda_device *dev;
static struct rk_cuda_stream *stream;

/* Fills with small normal numbers in bf16, one block repeated. */
static void randomize(void *memory, size_t bytes)
{
    enum { BLOCK = 1 << 20 };
    static uint16_t block[BLOCK];

    fill_bf16(block, BLOCK, 0.05F);
    for (size_t done = 0; done < bytes; done += sizeof(block) - 2 * 4099)
        must(cudaMemcpy((char *)memory + done, block,
                        bytes - done < sizeof(block) ? bytes - done : sizeof(block), cudaMemcpyHostToDevice));
}

/* One GEMM with several copies of the weight. */
struct problem {
    int64_t m, n, k;
    void *a, *b, *c, *expected;
    int num_sets;
};

static struct rk_gemm_args args_of(const struct problem *p, int set, bool strict)
{
    char *b = (char *)p->b + (size_t)set * (size_t)(p->n * p->k) * 2;

    return (struct rk_gemm_args){.c = rk_tensor_2d(p->c, RK_DTYPE_BF16, p->m, p->n),
                                 .a = rk_tensor_2d(p->a, RK_DTYPE_BF16, p->m, p->k),
                                 .b = rk_tensor_2d(b, RK_DTYPE_BF16, p->n, p->k),
                                 .trans_b = true,
                                 .strict = strict,
                                 .alpha = 1.0F};
}

/* choice < 0: the operator, -1 strict, -2 fast. */
static struct rk_status *run(const struct problem *p, int choice, int set)
{
    struct rk_gemm_args args = args_of(p, set, choice != -2);

    return choice < 0 ? rk_cuda_op_gemm(dev, stream, &args)
                      : rk_gemm_small_run(dev, stream, choice, 1, &args);
}

static double time_choice(const struct problem *p, int choice)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t events[2];
    float ms, best = 1e9F;

    check(run(p, choice, 0));
    must(cudaStreamSynchronize(stream->stream));
    must(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < MAX_CALLS; i++)
        check(run(p, choice, i % p->num_sets));
    must(cudaStreamEndCapture(stream->stream, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++)
        must(cudaEventCreate(&events[i]));
    for (int round = 0; round < 4; round++) {
        must(cudaEventRecord(events[0], stream->stream));
        must(cudaGraphLaunch(exec, stream->stream));
        must(cudaEventRecord(events[1], stream->stream));
        must(cudaEventSynchronize(events[1]));
        must(cudaEventElapsedTime(&ms, events[0], events[1]));
        best = ms < best ? ms : best;
    }
    must(cudaGraphExecDestroy(exec));
    must(cudaGraphDestroy(graph));
    return best * 1e3 / MAX_CALLS;
}

/* Number of elements that differ from gemm_chain.cu. */
static int64_t num_wrong(const struct problem *p, int choice)
{
    size_t count = (size_t)(p->m * p->n), wrong = 0;
    uint16_t *actual = rk_calloc(count, 2), *expected = rk_calloc(count, 2);
    struct rk_gemm_args args = args_of(p, 0, true);

    args.c.data = p->expected;
    check(rk_cuda_gemm_chain(dev, stream, &args));
    must(cudaMemsetAsync(p->c, 0xff, 2 * count, stream->stream));
    check(run(p, choice, 0));
    must(cudaStreamSynchronize(stream->stream));
    must(cudaMemcpy(actual, p->c, 2 * count, cudaMemcpyDeviceToHost));
    must(cudaMemcpy(expected, p->expected, 2 * count, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++)
        wrong += actual[i] != expected[i];
    rk_free(actual);
    rk_free(expected);
    return (int64_t)wrong;
}

static void report(const struct problem *p, const char *name, int choice)
{
    double us = time_choice(p, choice), bytes = (double)(p->n * p->k) * 2;
    int64_t wrong = num_wrong(p, choice);

    printf("    %-18s %8.2f us  %5.2f TB/s  %5.1f%%", name, us, bytes / us * 1e-6,
           bytes / us * 1e-6 / 4.3 * 100);
    if (wrong)
        printf("  %lld of %lld differ", (long long)wrong, (long long)(p->m * p->n));
    printf("\n");
}

static void measure(const char *name, int64_t m, int64_t n, int64_t k)
{
    size_t weight = (size_t)(n * k) * 2;
    struct problem p = {.m = m, .n = n, .k = k};
    struct rk_gemm_args args;
    int choices[RK_GEMM_SMALL_MAX_CHOICES], count;

    p.num_sets = (int)(SETS_BYTES / weight) + 1;
    p.num_sets = p.num_sets < MAX_CALLS ? p.num_sets : MAX_CALLS;
    must(cudaMalloc(&p.a, (size_t)(m * k) * 2));
    must(cudaMalloc(&p.b, weight * (size_t)p.num_sets));
    must(cudaMalloc(&p.c, (size_t)(m * n) * 2));
    must(cudaMalloc(&p.expected, (size_t)(m * n) * 2));
    randomize(p.a, (size_t)(m * k) * 2);
    randomize(p.b, weight * (size_t)p.num_sets);
    printf("%s: m=%lld n=%lld k=%lld, %.1f MB, bound %.1f us\n", name, (long long)m, (long long)n,
           (long long)k, (double)weight * 1e-6, (double)weight / 4.3e6);
    report(&p, "operator, fast", -2);
    report(&p, "operator, strict", -1);
    args = args_of(&p, 0, true);
    count = rk_gemm_small_choices(dev, &args, 1, choices);
    for (int i = 0; i < count && i < 16; i++) {
        char text[32];

        report(&p, rk_gemm_small_name(choices[i], text, sizeof(text)), choices[i]);
    }
    must(cudaFree(p.a));
    must(cudaFree(p.b));
    must(cudaFree(p.c));
    must(cudaFree(p.expected));
}

int main(int argc, char **argv)
{
    open_device(&dev, &stream);
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        if (argc < 3 || strstr(shapes[s].name, argv[2]))
            measure(shapes[s].name, argc > 1 ? number(argv[1]) : 64, shapes[s].n, shapes[s].k);
    }
    return 0;
}
