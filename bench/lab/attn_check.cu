/* Checks the attention kernels of kernels/cuda without the engine: against an f64 reference on the host, and
 * the bit equalities that kernels/cuda/attention/attn.h defines.
 *
 *   nvcc -std=c++17 -O3 -I. -gencode=arch=compute_90a,code=sm_90a bench/lab/attn_check.cu
 * kernels/cuda/attention/attn*.cu attn_check [fwd|bwd|paged|all] [mma|wgmma|all] [part of a case's label] */
#include "bench/lab/attn_lab.cuh"

static const attn_case cases[] = {
    {"hd128 ragged", RK_DTYPE_BF16, {1, 127, 128, 129, 0, 300, 33}, 4, 2, 128, 0},
    {"hd128 splits, group 7", RK_DTYPE_BF16, {1030, 130, 512}, 7, 1, 128, 0},
    {"hd128 window 100", RK_DTYPE_BF16, {700, 64, 230}, 2, 2, 128, 100},
    {"hd128 window 600", RK_DTYPE_BF16, {1300, 5}, 2, 1, 128, 600},
    {"hd128 70 sequences", RK_DTYPE_BF16, {}, 2, 1, 128, 0},
    {"hd128 window 1", RK_DTYPE_BF16, {140}, 1, 1, 128, 1},
    {"hd64 ragged", RK_DTYPE_BF16, {1, 255, 640, 129}, 6, 3, 64, 0},
    {"hd64 window 77", RK_DTYPE_BF16, {650, 3}, 4, 1, 64, 77},
    {"hd32", RK_DTYPE_BF16, {200, 530}, 4, 2, 32, 0},
    {"hd80", RK_DTYPE_BF16, {200, 530}, 4, 2, 80, 50},
    {"hd96", RK_DTYPE_BF16, {77, 600}, 3, 1, 96, 0},
    {"hd256", RK_DTYPE_BF16, {130, 555}, 2, 1, 256, 0},
    {"hd256 window", RK_DTYPE_BF16, {600}, 2, 2, 256, 99},
    {"f32 hd128", RK_DTYPE_F32, {1, 40, 300}, 4, 2, 128, 0},
    {"f32 hd20 window", RK_DTYPE_F32, {100, 7}, 2, 1, 20, 33},
    {"bf16 hd24", RK_DTYPE_BF16, {90, 31}, 2, 1, 24, 0},
    {"f16 hd64", RK_DTYPE_F16, {90, 33}, 2, 1, 64, 0},
};

static void check_fwd(const attn_case &c, const reference &ref, bool has_sm90a)
{
    attn_data d = make_data(c, has_sm90a);
    std::vector<char> bits;

    CHECK(rk_cuda_attn_fwd(0, &d.fwd));
    CHECK(cudaDeviceSynchronize());
    expect_error(c, "out", d.out, ref.out, rounding(c.dtype));
    expect_error(c, "lse", d.lse, ref.lse, 2e-5);
    bits = download_bytes(d.out);
    poison(d.out);
    CHECK(rk_cuda_attn_fwd(0, &d.fwd));
    expect_same(c, "out, second run", bits, download_bytes(d.out));
    if (has_sm90a) {
        d.fwd.device.has_sm90a = false;
        poison(d.out);
        CHECK(rk_cuda_attn_fwd(0, &d.fwd));
        expect_same(c, "out, wgmma against mma.sync", bits, download_bytes(d.out));
        d.fwd.device.has_sm90a = has_sm90a;
    }
    /* only the first half of the sequences, with NaN in the others */
    int half = d.num_seqs / 2;
    size_t kept = (size_t)d.cu[half] * c.num_heads * c.head_dim * element_bytes(c.dtype);

    for (tensor *t : {&d.q, &d.k, &d.v})
        CHECK(cudaMemset(t->data + d.cu[half] * t->stride * element_bytes(c.dtype), 0xff,
                         (d.num_tokens - d.cu[half]) * t->stride * element_bytes(c.dtype)));
    CHECK(rk_cuda_attn_fwd(0, &d.fwd));
    std::vector<char> beside_nan = download_bytes(d.out);
    expect_same(c, "out, beside NaN", {bits.begin(), bits.begin() + kept},
                {beside_nan.begin(), beside_nan.begin() + kept});
    d.fwd.num_seqs = half;
    d.fwd.num_tokens = d.cu[half];
    d.fwd.lse = NULL;
    poison(d.out);
    CHECK(rk_cuda_attn_fwd(0, &d.fwd));
    std::vector<char> alone = download_bytes(d.out);
    expect_same(c, "out, without the others", {bits.begin(), bits.begin() + kept},
                {alone.begin(), alone.begin() + kept});
    CHECK(cudaDeviceSynchronize());
    free_data(d);
}

static void check_bwd(const attn_case &c, const reference &ref, bool has_sm90a)
{
    attn_data d = make_data(c, has_sm90a);
    const char *names[] = {"dq, second run", "dk, second run", "dv, second run"};
    tensor grads[3] = {d.dq, d.dk, d.dv};
    std::vector<char> bits[3];
    double bound = 2 * rounding(c.dtype);

    /* out and lse of the forward kernel of the same path */
    CHECK(rk_cuda_attn_fwd(0, &d.fwd));
    CHECK(rk_cuda_attn_bwd(0, &d.bwd));
    CHECK(cudaDeviceSynchronize());
    expect_error(c, "dq", d.dq, ref.dq, bound);
    expect_error(c, "dk", d.dk, ref.dk, bound);
    expect_error(c, "dv", d.dv, ref.dv, bound);
    for (int i = 0; i < 3; i++) {
        bits[i] = download_bytes(grads[i]);
        poison(grads[i]);
    }
    CHECK(rk_cuda_attn_bwd(0, &d.bwd));
    for (int i = 0; i < 3; i++)
        expect_same(c, names[i], bits[i], download_bytes(grads[i]));
    d.bwd.fwd.device.num_sms = 1; /* one part: all heads of a group are summed by one thread block */
    CHECK(rk_cuda_attn_bwd(0, &d.bwd));
    expect_error(c, "dk, one part", d.dk, ref.dk, bound);
    expect_error(c, "dv, one part", d.dv, ref.dv, bound);
    d.bwd.fwd.device.num_sms = NUM_SMS;
    /* NaN in the last sequence must not affect the others */
    int last = d.num_seqs - 1;

    for (tensor *t : {&d.q, &d.k, &d.v, &d.dout, &d.out})
        CHECK(cudaMemset(t->data + d.cu[last] * t->stride * element_bytes(c.dtype), 0xff,
                         (d.num_tokens - d.cu[last]) * t->stride * element_bytes(c.dtype)));
    CHECK(rk_cuda_attn_bwd(0, &d.bwd));
    for (int i = 0; i < 3; i++) {
        std::vector<char> now = download_bytes(grads[i]);
        size_t kept = d.cu[last] * grads[i].width * element_bytes(c.dtype);

        expect_same(c, "gradient, beside NaN", {bits[i].begin(), bits[i].begin() + kept},
                    {now.begin(), now.begin() + kept});
    }
    CHECK(cudaDeviceSynchronize());
    free_data(d);
}

/* --- the paged cache */

struct paged_data {
    tensor k_cache, v_cache, q, out;
    std::vector<int> table, cu_q;
    std::vector<int> rows; /* of the packed q */
    int max_blocks;
    rk_cuda_attn_paged_args args;
};

/* Blocks in reverse order; unused cache memory is NaN. */
static void fill_cache(const attn_data &d, paged_data &p)
{
    size_t row = (size_t)d.c.head_dim * element_bytes(d.c.dtype);
    int num_blocks = 0, kv = d.c.num_kv_heads;

    p.max_blocks = 0;
    for (int length : d.c.lengths) {
        num_blocks += (length + BLOCK_SIZE - 1) / BLOCK_SIZE;
        p.max_blocks = std::max(p.max_blocks, (length + BLOCK_SIZE - 1) / BLOCK_SIZE + 3);
    }
    p.k_cache = make_tensor(d.c.dtype, num_blocks, (size_t)kv * BLOCK_SIZE * d.c.head_dim, 0);
    p.v_cache = make_tensor(d.c.dtype, num_blocks, (size_t)kv * BLOCK_SIZE * d.c.head_dim, 0);
    p.table.assign((size_t)d.num_seqs * p.max_blocks, -1);
    for (int s = 0; s < d.num_seqs; s++) {
        for (int j = 0; j < d.c.lengths[s]; j++) {
            int &block = p.table[(size_t)s * p.max_blocks + j / BLOCK_SIZE];

            if (j % BLOCK_SIZE == 0)
                block = --num_blocks;
            for (int h = 0; h < kv; h++) {
                size_t to = (((size_t)block * kv + h) * BLOCK_SIZE + j % BLOCK_SIZE) * row;
                size_t token = d.cu[s] + j;

                CHECK(cudaMemcpyAsync(p.k_cache.data + to,
                                      d.k.data + (token * d.k.stride + (size_t)h * d.c.head_dim) *
                                                     element_bytes(d.c.dtype),
                                      row, cudaMemcpyDeviceToDevice));
                CHECK(cudaMemcpyAsync(p.v_cache.data + to,
                                      d.v.data + (token * d.v.stride + (size_t)h * d.c.head_dim) *
                                                     element_bytes(d.c.dtype),
                                      row, cudaMemcpyDeviceToDevice));
            }
        }
    }
}

/* Queries end - num_new .. end - 1 of each sequence, with the cache up to `end`. */
static void make_paged_call(const attn_data &d, paged_data &p, const std::vector<int> &num_new,
                            const std::vector<int> &ends)
{
    size_t width = (size_t)d.c.num_heads * d.c.head_dim, bytes = width * element_bytes(d.c.dtype);
    std::vector<int> table = p.table;

    p.cu_q = {0};
    p.rows.clear();
    for (int s = 0; s < d.num_seqs; s++) {
        p.cu_q.push_back(p.cu_q.back() + num_new[s]);
        for (int i = ends[s] - num_new[s]; i < ends[s]; i++)
            p.rows.push_back(d.cu[s] + i);
        /* blocks that no query attends to may have been freed */
        int first = d.c.window > 0 ? std::max(0, ends[s] - num_new[s] - d.c.window + 1) / BLOCK_SIZE : 0;

        for (int b = 0; b < first; b++)
            table[(size_t)s * p.max_blocks + b] = -1;
    }
    p.q = make_tensor(d.c.dtype, p.rows.size(), width, 0);
    p.out = make_tensor(d.c.dtype, p.rows.size(), width, 0);
    for (size_t i = 0; i < p.rows.size(); i++)
        CHECK(cudaMemcpyAsync(p.q.data + i * bytes,
                              d.q.data + (size_t)p.rows[i] * d.q.stride * element_bytes(d.c.dtype), bytes,
                              cudaMemcpyDeviceToDevice));
    p.args = {};
    p.args.device = d.fwd.device;
    p.args.dtype = d.c.dtype;
    p.args.num_tokens = (int)p.rows.size();
    p.args.num_seqs = d.num_seqs;
    p.args.num_heads = d.c.num_heads;
    p.args.num_kv_heads = d.c.num_kv_heads;
    p.args.head_dim = p.args.v_head_dim = p.args.v_row_stride = d.c.head_dim;
    p.args.window = d.c.window;
    p.args.scale = d.scale;
    p.args.num_blocks = (int)p.k_cache.rows;
    p.args.block_size = BLOCK_SIZE;
    p.args.max_blocks = p.max_blocks;
    p.args.k_cache = p.k_cache.data;
    p.args.v_cache = p.v_cache.data;
    p.args.cache_block_stride = p.args.v_cache_block_stride = p.k_cache.stride;
    p.args.block_table = (const int32_t *)upload_ints(table);
    p.args.block_table_stride = p.max_blocks;
    p.args.cu_q = (const int32_t *)upload_ints(p.cu_q);
    p.args.seq_lens = (const int32_t *)upload_ints(ends);
    p.args.q = p.q.data;
    p.args.out = p.out.data;
    p.args.q_stride = p.args.out_stride = width;
}

static void check_paged_call(const attn_data &d, paged_data &p, const std::vector<char> &packed,
                             void *workspace, const char *what)
{
    size_t bytes = (size_t)d.c.num_heads * d.c.head_dim * element_bytes(d.c.dtype);
    std::vector<char> want;
    char label[64];

    for (int row : p.rows)
        want.insert(want.end(), packed.begin() + row * bytes, packed.begin() + (row + 1) * bytes);
    p.args.workspace = workspace;
    CHECK(rk_cuda_attn_paged(0, &p.args));
    CHECK(cudaDeviceSynchronize());
    expect_same(d.c, what, want, download_bytes(p.out));
    if (d.c.dtype == RK_DTYPE_BF16 && d.c.head_dim % 16 == 0) {
        poison(p.out);
        snprintf(label, sizeof(label), "%s, prefill kernel", what);
        CHECK(rk_attn_paged_mma(0, &p.args));
        expect_same(d.c, label, want, download_bytes(p.out));
        if (d.c.head_dim == 64 || d.c.head_dim == 128) {
            poison(p.out);
            snprintf(label, sizeof(label), "%s, wgmma prefill kernel", what);
            CHECK(rk_attn_paged_wgmma(0, &p.args));
            expect_same(d.c, label, want, download_bytes(p.out));
            poison(p.out);
            snprintf(label, sizeof(label), "%s, TMA decode kernel", what);
            CHECK(rk_attn_decode_tma(0, &p.args));
            expect_same(d.c, label, want, download_bytes(p.out));
        }
        poison(p.out);
        snprintf(label, sizeof(label), "%s, decode kernel", what);
        CHECK(rk_attn_decode(0, &p.args));
        expect_same(d.c, label, want, download_bytes(p.out));
        poison(p.out);
        snprintf(label, sizeof(label), "%s, decode in one part", what);
        p.args.device.num_sms = 1;
        CHECK(rk_attn_decode(0, &p.args));
        expect_same(d.c, label, want, download_bytes(p.out));
    }
    CHECK(cudaFree(p.q.data));
    CHECK(cudaFree(p.out.data));
}

static void check_paged(const attn_case &c, bool has_sm90a)
{
    attn_data d = make_data(c, has_sm90a);
    paged_data p = {};
    std::vector<int> ones, halves, half_ends, chunk, empty_and_few;
    void *workspace;
    size_t workspace_bytes = 64 << 20;

    CHECK(rk_cuda_attn_fwd(0, &d.fwd));
    std::vector<char> packed = download_bytes(d.out);
    fill_cache(d, p);
    CHECK(cudaMalloc(&workspace, workspace_bytes));
    CHECK(cudaMemset(workspace, 0, workspace_bytes));
    for (size_t s = 0; s < c.lengths.size(); s++) {
        int length = c.lengths[s];

        ones.push_back(std::min(length, 1));
        halves.push_back(length / 2);
        half_ends.push_back(length - length / 3);
        chunk.push_back(std::min(length - length / 3, 70));
        empty_and_few.push_back(s % 2 ? 0 : std::min(length, 5));
    }
    make_paged_call(d, p, ones, c.lengths);
    check_paged_call(d, p, packed, workspace, "decode");
    make_paged_call(d, p, c.lengths, c.lengths);
    check_paged_call(d, p, packed, workspace, "whole prefill");
    make_paged_call(d, p, halves, c.lengths);
    check_paged_call(d, p, packed, workspace, "second halves");
    make_paged_call(d, p, chunk, half_ends);
    check_paged_call(d, p, packed, workspace, "chunk in the middle");
    make_paged_call(d, p, empty_and_few, c.lengths);
    check_paged_call(d, p, packed, workspace, "nothing and few");
    CHECK(cudaFree(workspace));
    free_data(d);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all", *path = argc > 2 ? argv[2] : "all",
               *only = argc > 3 ? argv[3] : "";

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (attn_case c : cases) {
        if (!strstr(c.label, only))
            continue;
        if (c.lengths.empty()) {
            for (int i = 0; i < 70; i++)
                c.lengths.push_back(i * i * 7 % 200); /* 0 to 197 */
        }
        attn_data d = make_data(c, false);
        reference ref = make_reference(d);

        free_data(d);
        for (bool has_sm90a : {false, true}) {
            if (strcmp(path, "all") && strcmp(path, has_sm90a ? "wgmma" : "mma"))
                continue;
            if (!strcmp(what, "fwd") || !strcmp(what, "all"))
                check_fwd(c, ref, has_sm90a);
            if (!strcmp(what, "bwd") || !strcmp(what, "all"))
                check_bwd(c, ref, has_sm90a);
            if (!strcmp(what, "paged") || !strcmp(what, "all"))
                check_paged(c, has_sm90a);
        }
    }
    printf("%s %s: %d passed, %d failed\n", what, path, num_passed, num_failed);
    return num_failed != 0;
}
