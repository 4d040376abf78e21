/* Data, host reference and comparison for attn_check.cu and attn_time.cu. */
#ifndef RK_BENCH_LAB_ATTN_LAB_CUH
#define RK_BENCH_LAB_ATTN_LAB_CUH

#include "kernels/cuda/attention/attn_internal.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define CHECK(expr)                                                                         \
    do {                                                                                    \
        cudaError_t err_ = (expr);                                                          \
        if (err_ != cudaSuccess) {                                                          \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #expr, cudaGetErrorString(err_)); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

static const int NUM_SMS = 132, MAX_SHARED_BYTES = 227 << 10;
static const int BLOCK_SIZE = 16; /* of the paged cache */
static int num_failed, num_passed;

struct attn_case {
    const char *label;
    rk_dtype_t dtype;
    std::vector<int> lengths;
    int num_heads, num_kv_heads, head_dim, window;
};

/* --- data */

static uint64_t rng_state;

static inline double uniform()
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return ((rng_state >> 11) + 0.5) * 0x1p-53;
}

static inline float normal()
{
    return (float)(sqrt(-2.0 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

static size_t element_bytes(rk_dtype_t dtype)
{
    return dtype == RK_DTYPE_F32 ? 4 : 2;
}

static inline void encode(void *dst, rk_dtype_t dtype, const std::vector<float> &src)
{
    for (size_t i = 0; i < src.size(); i++) {
        if (dtype == RK_DTYPE_F32)
            ((float *)dst)[i] = src[i];
        else if (dtype == RK_DTYPE_F16)
            ((__half *)dst)[i] = __float2half(src[i]);
        else
            ((__nv_bfloat16 *)dst)[i] = __float2bfloat16(src[i]);
    }
}

static inline std::vector<float> decode(const void *src, rk_dtype_t dtype, size_t count)
{
    std::vector<float> dst(count);

    for (size_t i = 0; i < count; i++) {
        if (dtype == RK_DTYPE_F32)
            dst[i] = ((const float *)src)[i];
        else if (dtype == RK_DTYPE_F16)
            dst[i] = __half2float(((const __half *)src)[i]);
        else
            dst[i] = __bfloat162float(((const __nv_bfloat16 *)src)[i]);
    }
    return dst;
}

/* Rows of `width` elements, `stride` apart on the device; initialized to NaN (0xff bytes). */
struct tensor {
    rk_dtype_t dtype;
    size_t rows, width, stride;
    char *data;
};

static inline tensor make_tensor(rk_dtype_t dtype, size_t rows, size_t width, size_t gap)
{
    tensor t = {dtype, rows, width, width + gap, NULL};

    CHECK(cudaMalloc(&t.data, std::max<size_t>(rows * t.stride * element_bytes(dtype), 16)));
    CHECK(cudaMemset(t.data, 0xff, rows * t.stride * element_bytes(dtype)));
    return t;
}

static inline void upload(const tensor &t, const std::vector<float> &values)
{
    std::vector<char> bytes(values.size() * element_bytes(t.dtype));
    size_t row = t.width * element_bytes(t.dtype);

    encode(bytes.data(), t.dtype, values);
    CHECK(cudaMemcpy2D(t.data, t.stride * element_bytes(t.dtype), bytes.data(), row, row, t.rows,
                       cudaMemcpyHostToDevice));
}

static inline std::vector<char> download_bytes(const tensor &t)
{
    size_t row = t.width * element_bytes(t.dtype);
    std::vector<char> bytes(t.rows * row);

    CHECK(cudaMemcpy2D(bytes.data(), row, t.data, t.stride * element_bytes(t.dtype), row, t.rows,
                       cudaMemcpyDeviceToHost));
    return bytes;
}

static inline std::vector<float> download(const tensor &t)
{
    return decode(download_bytes(t).data(), t.dtype, t.rows * t.width);
}

/* Uploads standard normal values; returns them as rounded to the dtype. */
static inline std::vector<float> randomize(const tensor &t)
{
    std::vector<float> values(t.rows * t.width);

    for (float &x : values)
        x = normal();
    upload(t, values);
    return download(t);
}

static inline void *upload_ints(const std::vector<int> &values)
{
    void *ptr;

    CHECK(cudaMalloc(&ptr, values.size() * sizeof(int) + 16));
    CHECK(cudaMemcpy(ptr, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice));
    return ptr;
}

/* --- a case on the device, and its reference */

struct attn_data {
    attn_case c;
    std::vector<int> cu;
    int num_tokens, num_seqs, group;
    float scale;
    tensor q, k, v, out, dout, dq, dk, dv, lse;
    std::vector<float> hq, hk, hv, hdout;
    rk_cuda_attn_args fwd;
    rk_cuda_attn_bwd_args bwd;
};

static inline void fill_args(attn_data &d, bool has_sm90a)
{
    d.fwd = {};
    d.fwd.device = {NUM_SMS, MAX_SHARED_BYTES, has_sm90a};
    d.fwd.dtype = d.c.dtype;
    d.fwd.num_tokens = d.num_tokens;
    d.fwd.num_seqs = d.num_seqs;
    d.fwd.num_heads = d.c.num_heads;
    d.fwd.num_kv_heads = d.c.num_kv_heads;
    d.fwd.head_dim = d.fwd.v_head_dim = d.c.head_dim;
    d.fwd.window = d.c.window;
    d.fwd.scale = d.scale;
    d.fwd.cu_seqlens = (const int32_t *)upload_ints(d.cu);
    d.fwd.q = d.q.data;
    d.fwd.k = d.k.data;
    d.fwd.v = d.v.data;
    d.fwd.q_stride = d.q.stride;
    d.fwd.k_stride = d.k.stride;
    d.fwd.v_stride = d.v.stride;
    d.fwd.out = d.out.data;
    d.fwd.out_stride = d.out.stride;
    d.fwd.lse = (float *)d.lse.data;
    d.bwd = {};
    d.bwd.fwd = d.fwd;
    d.bwd.dout = d.dout.data;
    d.bwd.dout_stride = d.dout.stride;
    d.bwd.dq = d.dq.data;
    d.bwd.dk = d.dk.data;
    d.bwd.dv = d.dv.data;
    d.bwd.dq_stride = d.dq.stride;
    d.bwd.dk_stride = d.dk.stride;
    d.bwd.dv_stride = d.dv.stride;
    CHECK(cudaMalloc(&d.bwd.workspace, rk_cuda_attn_bwd_workspace_bytes(&d.bwd)));
}

/* For timing: standard normal values generated on the device. */
static __global__ void fill_kernel(__nv_bfloat16 *dst, size_t count, uint64_t seed)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t x = (i + seed) * 0x9e3779b97f4a7c15ull;

        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ x >> 27) * 0x94d049bb133111ebull;
        x ^= x >> 31;
        dst[i] = __float2bfloat16(sqrtf(-2.0f * logf(((uint32_t)x + 0.5f) * 0x1p-32f)) *
                                  cospif((float)(x >> 32) * 0x1p-31f));
    }
}

static inline void fill(const tensor &t, uint64_t seed)
{
    fill_kernel<<<1024, 256>>>((__nv_bfloat16 *)t.data, t.rows * t.stride, seed << 40);
    CHECK(cudaGetLastError());
}

static inline attn_data make_data(const attn_case &c, bool has_sm90a, bool is_timed = false)
{
    size_t q_width = (size_t)c.num_heads * c.head_dim, kv_width = (size_t)c.num_kv_heads * c.head_dim;
    attn_data d = {};

    d.c = c;
    d.cu.push_back(0);
    for (int length : c.lengths)
        d.cu.push_back(d.cu.back() + length);
    d.num_tokens = d.cu.back();
    d.num_seqs = (int)c.lengths.size();
    d.group = c.num_heads / c.num_kv_heads;
    d.scale = 1.0f / sqrtf((float)c.head_dim);
    d.q = make_tensor(c.dtype, d.num_tokens, q_width, 2 * kv_width);
    d.k = make_tensor(c.dtype, d.num_tokens, kv_width, q_width);
    d.v = make_tensor(c.dtype, d.num_tokens, kv_width, 8);
    d.out = make_tensor(c.dtype, d.num_tokens, q_width, 0);
    d.dout = make_tensor(c.dtype, d.num_tokens, q_width, 16);
    d.dq = make_tensor(c.dtype, d.num_tokens, q_width, 2 * kv_width);
    d.dk = make_tensor(c.dtype, d.num_tokens, kv_width, 8);
    d.dv = make_tensor(c.dtype, d.num_tokens, kv_width, 0);
    d.lse = make_tensor(RK_DTYPE_F32, c.num_heads, d.num_tokens, 0);
    rng_state = 20261120;
    if (is_timed) {
        fill(d.q, 1);
        fill(d.k, 2);
        fill(d.v, 3);
        fill(d.dout, 4);
    } else {
        d.hq = randomize(d.q);
        d.hk = randomize(d.k);
        d.hv = randomize(d.v);
        d.hdout = randomize(d.dout);
    }
    fill_args(d, has_sm90a);
    return d;
}

static inline void free_data(attn_data &d)
{
    for (tensor *t : {&d.q, &d.k, &d.v, &d.out, &d.dout, &d.dq, &d.dk, &d.dv, &d.lse})
        CHECK(cudaFree(t->data));
    CHECK(cudaFree((void *)d.fwd.cu_seqlens));
    CHECK(cudaFree(d.bwd.workspace));
}

struct reference {
    std::vector<double> out, lse, dq, dk, dv;
};

static inline double dot(const float *a, const float *b, int n)
{
    double sum[4] = {};

    for (int i = 0; i < n; i++) /* four chains: n is a multiple of 4 */
        sum[i % 4] += (double)a[i] * b[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* One query: out, lse and its contribution to the gradients. */
static inline void reference_row(const attn_data &d, reference &ref, int seq, int head, int i)
{
    int begin = d.cu[seq], hd = d.c.head_dim, kv = head / d.group, window = d.c.window;
    int first = window > 0 ? std::max(0, i - window + 1) : 0;
    size_t row = ((size_t)(begin + i) * d.c.num_heads + head) * hd;
    std::vector<double> p(i - first + 1);
    double top = -INFINITY, sum = 0.0, delta = 0.0;

    for (int j = first; j <= i; j++) {
        p[j - first] =
            d.scale * dot(&d.hq[row], &d.hk[((size_t)(begin + j) * d.c.num_kv_heads + kv) * hd], hd);
        top = std::max(top, p[j - first]);
    }
    for (double &x : p)
        sum += x = exp(x - top);
    for (int j = first; j <= i; j++) {
        size_t key = ((size_t)(begin + j) * d.c.num_kv_heads + kv) * hd;

        p[j - first] /= sum;
        delta += p[j - first] * dot(&d.hdout[row], &d.hv[key], hd);
        for (int x = 0; x < hd; x++)
            ref.out[row + x] += p[j - first] * d.hv[key + x];
    }
    ref.lse[(size_t)head * d.num_tokens + begin + i] = top + log(sum);
    for (int j = first; j <= i; j++) {
        size_t key = ((size_t)(begin + j) * d.c.num_kv_heads + kv) * hd;
        double ds = d.scale * p[j - first] * (dot(&d.hdout[row], &d.hv[key], hd) - delta);

        for (int x = 0; x < hd; x++) {
            ref.dq[row + x] += ds * d.hk[key + x];
            ref.dk[key + x] += ds * d.hq[row + x];
            ref.dv[key + x] += p[j - first] * d.hdout[row + x];
        }
    }
}

static inline reference make_reference(const attn_data &d)
{
    size_t q_size = (size_t)d.num_tokens * d.c.num_heads * d.c.head_dim, kv_size = q_size / d.group;
    reference ref = {std::vector<double>(q_size), std::vector<double>((size_t)d.num_tokens * d.c.num_heads),
                     std::vector<double>(q_size), std::vector<double>(kv_size), std::vector<double>(kv_size)};

    for (int seq = 0; seq < d.num_seqs; seq++) {
        for (int head = 0; head < d.c.num_heads; head++) {
            for (int i = 0; i < d.c.lengths[seq]; i++)
                reference_row(d, ref, seq, head, i);
        }
    }
    return ref;
}

/* Maximum of ||got - want|| / ||want|| over blocks of `block` elements; if `want` is (nearly) zero, relative
 * to a hundredth of unit variance. NaN counts as infinite. */
static inline double worst_error(const std::vector<float> &got, const std::vector<double> &want, size_t block)
{
    double worst = 0.0;

    for (size_t begin = 0; begin < want.size(); begin += block) {
        size_t end = std::min(begin + block, want.size());
        double diff = 0.0, norm = 0.0, ratio;

        for (size_t i = begin; i < end; i++) {
            diff += (got[i] - want[i]) * (got[i] - want[i]);
            norm += want[i] * want[i];
        }
        ratio = sqrt(diff) / (sqrt(norm) + 0.01 * sqrt((double)(end - begin)));
        worst = ratio <= worst ? worst : std::isnan(ratio) ? INFINITY : ratio;
    }
    return worst;
}

static inline void expect(bool ok, const char *label, const char *what, double value, double bound)
{
    num_failed += !ok;
    num_passed += ok;
    if (!ok)
        printf("%-6s %-24s %-34s %.3e (bound %.1e)\n", ok ? "ok" : "FAILED", label, what, value, bound);
}

static inline void expect_error(const attn_case &c, const char *what, const tensor &t,
                                const std::vector<double> &want, double bound)
{
    double error = worst_error(download(t), want, 16 * t.width);

    expect(error <= bound, c.label, what, error, bound);
}

static inline void expect_same(const attn_case &c, const char *what, const std::vector<char> &a,
                               const std::vector<char> &b)
{
    size_t num_bytes = 0;

    for (size_t i = 0; i < a.size(); i++)
        num_bytes += a[i] != b[i];
    expect(a.size() == b.size() && num_bytes == 0, c.label, what, (double)num_bytes, 0.0);
}

static inline void poison(const tensor &t)
{
    CHECK(cudaMemset(t.data, 0xff, t.rows * t.stride * element_bytes(t.dtype)));
}

static inline double rounding(rk_dtype_t dtype)
{
    return dtype == RK_DTYPE_F32 ? 2e-6 : dtype == RK_DTYPE_F16 ? 1e-3 : 6e-3;
}

#endif
