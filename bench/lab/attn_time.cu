/* Times the attention kernels of kernels/cuda without the engine: medians from captured graphs.
 *
 *   nvcc -std=c++17 -O3 -I. -gencode=arch=compute_90a,code=sm_90a bench/lab/attn_time.cu
 * kernels/cuda/attention/attn*.cu attn_time [packed|paged|all]
 *
 * Forward FLOPs are 4 * head_dim * num_heads * (unmasked pairs), backward 2.5 times as many (the convention
 * of PyTorch and of published figures, although the backward pass here computes the scores twice). */
#include "bench/lab/attn_lab.cuh"

/* Median per run, from graphs of num_runs: 1 measures a GPU that is idle between runs, many runs measure it
 * at its power limit. */
template <typename F> static double median_ms(int num_runs, F run)
{
    std::vector<float> times(11);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;

    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < num_runs; i++)
        run(stream, i);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    for (float &ms : times) {
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return times[times.size() / 2] / num_runs;
}

/* At sizes that are too large for the host reference: compares the two paths. */
static void compare_paths(attn_data &d)
{
    tensor grads[3] = {d.dq, d.dk, d.dv};
    std::vector<float> want[3];
    std::vector<char> bits;

    CHECK(rk_cuda_attn_fwd(0, &d.fwd));
    CHECK(rk_cuda_attn_bwd(0, &d.bwd));
    CHECK(cudaDeviceSynchronize());
    bits = download_bytes(d.out);
    for (int i = 0; i < 3; i++)
        want[i] = download(grads[i]);
    d.fwd.device.has_sm90a = d.bwd.fwd.device.has_sm90a = false;
    CHECK(rk_cuda_attn_fwd(0, &d.fwd));
    CHECK(rk_cuda_attn_bwd(0, &d.bwd));
    CHECK(cudaDeviceSynchronize());
    expect_same(d.c, "out, wgmma against mma.sync, large", bits, download_bytes(d.out));
    for (int i = 0; i < 3; i++) {
        double error = worst_error(download(grads[i]), {want[i].begin(), want[i].end()}, 16 * grads[i].width);

        expect(error < 1e-2, d.c.label, "gradient, wgmma against mma.sync", error, 1e-2);
    }
    d.fwd.device.has_sm90a = d.bwd.fwd.device.has_sm90a = true;
}

static void time_packed(const char *label, int num_seqs, int length, int num_heads, int num_kv_heads,
                        int head_dim, bool has_sm90a)
{
    attn_case c = {
        label, RK_DTYPE_BF16, std::vector<int>(num_seqs, length), num_heads, num_kv_heads, head_dim, 0};
    attn_data d = make_data(c, has_sm90a, true);
    double flops = 4.0 * head_dim * num_heads * num_seqs * ((double)length * length / 2), fwd, bwd;

    if (has_sm90a && (int64_t)num_seqs * length * num_heads <= 1 << 18)
        compare_paths(d);
    printf("%-6s hd%-3d %2d x %5d tokens, heads %2d/%2d:", label, head_dim, num_seqs, length, num_heads,
           num_kv_heads);
    for (int num_runs : {1, 20}) {
        fwd = median_ms(num_runs, [&](cudaStream_t stream, int) { CHECK(rk_cuda_attn_fwd(stream, &d.fwd)); });
        bwd = median_ms(num_runs, [&](cudaStream_t stream, int) { CHECK(rk_cuda_attn_bwd(stream, &d.bwd)); });
        printf(" %s fwd %7.3f ms %6.1f TFLOP/s, bwd %7.3f ms %6.1f TFLOP/s;",
               num_runs == 1 ? "rested" : "sustained", fwd, flops / fwd * 1e-9, bwd,
               2.5 * flops / bwd * 1e-9);
    }
    printf("\n");
    free_data(d);
}

/* num_new queries per sequence, after `length` - num_new earlier tokens. */
static void time_paged(int num_seqs, int num_new, int length, int num_heads, int num_kv_heads, int max_blocks)
{
    enum { HD = 128, COPIES = 4 };
    size_t blocks = (size_t)num_seqs * ((length + BLOCK_SIZE - 1) / BLOCK_SIZE);
    size_t cache_elements = blocks * num_kv_heads * BLOCK_SIZE * HD;
    std::vector<int> table((size_t)num_seqs * max_blocks, -1), lens(num_seqs, length), cu_q(num_seqs + 1);
    rk_cuda_attn_paged_args args = {};
    size_t rows = (size_t)num_seqs * num_new;
    tensor q = make_tensor(RK_DTYPE_BF16, rows, (size_t)num_heads * HD, 0);
    tensor out = make_tensor(RK_DTYPE_BF16, rows, (size_t)num_heads * HD, 0);
    tensor k[COPIES], v[COPIES];
    size_t workspace_bytes;
    void *workspace;
    std::function<void(cudaStream_t, int)> run;
    double ms;

    fill(q, 99);
    for (int s = 0; s <= num_seqs; s++)
        cu_q[s] = s * num_new;
    for (size_t b = 0; b < blocks; b++)
        table[b % num_seqs * max_blocks + b / num_seqs] = (int)(blocks - 1 - b);
    for (int i = 0; i < COPIES; i++) {
        k[i] = make_tensor(RK_DTYPE_BF16, 1, cache_elements, 0);
        v[i] = make_tensor(RK_DTYPE_BF16, 1, cache_elements, 0);
        fill(k[i], 2 * i);
        fill(v[i], 2 * i + 1);
    }
    args.device = {NUM_SMS, MAX_SHARED_BYTES, true};
    args.dtype = RK_DTYPE_BF16;
    args.num_tokens = (int)rows;
    args.num_seqs = num_seqs;
    args.num_blocks = (int)blocks;
    args.num_heads = num_heads;
    args.num_kv_heads = num_kv_heads;
    args.head_dim = args.v_head_dim = args.v_row_stride = HD;
    args.scale = 1.0f / sqrtf(HD);
    args.block_size = BLOCK_SIZE;
    args.max_blocks = max_blocks;
    args.cache_block_stride = args.v_cache_block_stride = (int64_t)num_kv_heads * BLOCK_SIZE * HD;
    args.block_table = (const int32_t *)upload_ints(table);
    args.block_table_stride = max_blocks;
    args.cu_q = (const int32_t *)upload_ints(cu_q);
    args.seq_lens = (const int32_t *)upload_ints(lens);
    args.q = q.data;
    args.out = out.data;
    args.q_stride = args.out_stride = (int64_t)num_heads * HD;
    workspace_bytes = rk_cuda_attn_paged_workspace_bytes(&args);
    CHECK(cudaMalloc(&workspace, workspace_bytes));
    CHECK(cudaMemset(workspace, 0, workspace_bytes));
    args.workspace = workspace;
    run = [&](cudaStream_t stream, int i) {
        args.k_cache = k[i % COPIES].data;
        args.v_cache = v[i % COPIES].data;
        CHECK(rk_cuda_attn_paged(stream, &args));
    };
    ms = median_ms(20, run);
    printf("paged  hd128 %3d seqs, %4d queries each, %5d keys, heads %2d/%2d, table %4d: %7.1f us %6.0f GB/s "
           "%5.1f TFLOP/s",
           num_seqs, num_new, length, num_heads, num_kv_heads, max_blocks, ms * 1e3,
           2.0 * num_seqs * length * num_kv_heads * HD * 2 / ms * 1e-6,
           4.0 * HD * num_heads * rows * (length - 0.5 * num_new) / ms * 1e-9);
    if (num_new == 1) {
        args.device.num_sms = 2 * NUM_SMS;
        printf("; in more parts %7.1f us", median_ms(20, run) * 1e3);
    }
    args.device = {NUM_SMS, MAX_SHARED_BYTES, false};
    printf("; by sm_80's kernel %7.1f us\n", median_ms(20, run) * 1e3);
    for (int i = 0; i < COPIES; i++) {
        CHECK(cudaFree(k[i].data));
        CHECK(cudaFree(v[i].data));
    }
    CHECK(cudaFree(workspace));
    CHECK(cudaFree(q.data));
    CHECK(cudaFree(out.data));
}

static void time_all_packed()
{
    time_packed("wgmma", 2, 4096, 16, 16, 128, true);
    time_packed("wgmma", 4, 2048, 16, 16, 128, true);
    time_packed("wgmma", 1, 8192, 16, 16, 128, true);
    time_packed("wgmma", 4, 2048, 12, 2, 128, true);
    time_packed("wgmma", 4, 2048, 28, 4, 128, true);
    time_packed("wgmma", 16, 512, 28, 4, 128, true);
    time_packed("wgmma", 2, 4096, 32, 32, 64, true);
    time_packed("mma", 2, 4096, 16, 16, 128, false);
    time_packed("mma", 2, 4096, 32, 32, 64, false);
    time_packed("mma", 2, 4096, 16, 16, 96, false);
    time_packed("mma", 2, 4096, 8, 8, 256, false);
}

static void time_all_paged()
{
    time_paged(64, 1, 1024, 12, 2, 128);
    time_paged(64, 1, 1024, 28, 4, 128);
    time_paged(64, 1, 1024, 28, 4, 2048);
    time_paged(256, 1, 1024, 28, 4, 128);
    time_paged(64, 1, 8192, 12, 2, 512);
    time_paged(1, 1, 32768, 28, 4, 2048);
    time_paged(1, 1, 1024, 28, 4, 128);
    time_paged(4, 2048, 2048, 28, 4, 128);
    time_paged(1, 2048, 16384, 28, 4, 1024);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(what, "paged"))
        time_all_packed();
    if (strcmp(what, "packed"))
        time_all_paged();
    return num_failed != 0;
}
