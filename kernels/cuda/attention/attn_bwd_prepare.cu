/* Before and after the tensor-core backward kernels of attention: delta = sum over v_head_dim of dout * out,
 * and the sum of the parts of dk and dv, with zeros for keys in no segment. Twin of
 * kernels/cpu/attn_varlen_bwd.c with attn_bwd.cu, attn_bwd_sm90.cu.
 *
 * Parts        A kv head's gradient sums over the query heads of its group. Splitting by keys only gives too
 *              few thread blocks for models with few kv heads, so the group is split into parts, whose number
 *              depends on shapes and GPU; the parts' f32 sums are added here in ascending order.
 * Traffic      delta 4 * v_head_dim bytes a row: 3.3 TB/s on H200 (21 us for 8192 tokens of 16 x 128). The
 *              parts 8 * num_parts * head_dim bytes a token and kv head. */
#include "kernels/cuda/attention/attn_common.cuh"
#include "kernels/cuda/attention/attn_internal.cuh"

namespace
{

constexpr int THREADS = 256;

/* Unpacks a register of two bf16. */
__device__ inline float2 unpack(uint32_t x)
{
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}

/* Four lanes per row of (token, head); v_head_dim % 8 == 0. */
__global__ void __launch_bounds__(THREADS)
    attn_delta_rows_kernel(const rk_cuda_attn_bwd_args args, float *delta)
{
    const rk_cuda_attn_args &fwd = args.fwd;
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 4;
    int token = (int)(row / fwd.num_heads), head = (int)(row % fwd.num_heads);
    float sum = 0.0f;

    if (token < fwd.num_tokens) { /* no early return: the lanes of a quad synchronise below */
        const bf16 *dout = (const bf16 *)args.dout + token * args.dout_stride + head * fwd.v_head_dim;
        const bf16 *out = (const bf16 *)fwd.out + token * fwd.out_stride + head * fwd.v_head_dim;

        for (int c = threadIdx.x % 4 * 8; c < fwd.v_head_dim; c += 32) {
            uint4 a = *reinterpret_cast<const uint4 *>(dout + c),
                  b = *reinterpret_cast<const uint4 *>(out + c);
            const uint32_t *x = &a.x, *y = &b.x;

#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum = __fmaf_rn(unpack(x[i]).x, unpack(y[i]).x, sum);
                sum = __fmaf_rn(unpack(x[i]).y, unpack(y[i]).y, sum);
            }
        }
    }
    sum = attn_quad_sum(sum);
    if (token < fwd.num_tokens && threadIdx.x % 4 == 0)
        delta[(int64_t)head * fwd.num_tokens + token] = sum;
}

/* Four columns per thread, of dk (blockIdx.y 0) or dv (1). */
__global__ void __launch_bounds__(THREADS)
    attn_sum_parts_kernel(const rk_cuda_attn_bwd_args args, const attn_bwd_plan plan)
{
    int width = args.fwd.num_kv_heads * (blockIdx.y ? args.fwd.v_head_dim : args.fwd.head_dim);
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4, size = (int64_t)args.fwd.num_keys * width;
    int64_t stride = blockIdx.y ? args.dv_stride : args.dk_stride;
    const float *parts = blockIdx.y ? plan.dv : plan.dk;
    bf16 *dst = (bf16 *)(blockIdx.y ? args.dv : args.dk);
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};

    if (i >= size)
        return;
    for (int p = 0; p < plan.num_parts; p++) {
        float4 x = *reinterpret_cast<const float4 *>(parts + p * size + i);

        sum.x += x.x;
        sum.y += x.y;
        sum.z += x.z;
        sum.w += x.w;
    }
    *reinterpret_cast<uint2 *>(dst + i / width * stride + i % width) =
        make_uint2(attn_pack(sum.x, sum.y), attn_pack(sum.z, sum.w));
}

size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Bytes of all parts of dk or dv, whose heads have `width` columns. */
size_t parts_bytes(const rk_cuda_attn_args *fwd, int num_parts, int width)
{
    return round_up((size_t)num_parts * fwd->num_keys * fwd->num_kv_heads * width * sizeof(float));
}

/* Bytes of all parts of dk and dv; 0 where one part makes them whole. */
size_t all_parts_bytes(const rk_cuda_attn_args *fwd, int num_parts)
{
    return num_parts > 1
               ? parts_bytes(fwd, num_parts, fwd->head_dim) + parts_bytes(fwd, num_parts, fwd->v_head_dim)
               : 0;
}

size_t delta_bytes(const rk_cuda_attn_args *fwd)
{
    return round_up((size_t)fwd->num_tokens * fwd->num_heads * sizeof(float));
}

/* Zeroes rows of dk or dv. */
cudaError_t zero_rows(cudaStream_t stream, void *rows, int64_t stride, int head_dim,
                      const rk_cuda_attn_args *fwd)
{
    size_t element = rk_dtype_bytes(fwd->dtype), width = (size_t)fwd->num_kv_heads * head_dim * element;
    size_t pitch = (size_t)stride * element;

    return cudaMemset2DAsync(rows, RK_MAX(pitch, width), 0, width, (size_t)fwd->num_keys, stream);
}

/* Two thread blocks per SM balance heavy and light ones. */
int count_parts(const rk_cuda_attn_args *fwd)
{
    int group = fwd->num_heads / fwd->num_kv_heads, parts = 1;
    int64_t blocks = ((int64_t)fwd->num_keys + 127) / 128 * fwd->num_kv_heads;

    while (parts < group && (group % parts != 0 || blocks * parts * 10 < fwd->device.num_sms * 19LL))
        parts++;
    return parts;
}

} // namespace

attn_bwd_plan rk_attn_bwd_make_plan(const rk_cuda_attn_bwd_args *args)
{
    char *base = (char *)args->workspace;
    attn_bwd_plan plan;

    plan.num_parts = count_parts(&args->fwd);
    plan.delta = (float *)base;
    plan.dk = (float *)(base + delta_bytes(&args->fwd));
    plan.dv = plan.dk + parts_bytes(&args->fwd, plan.num_parts, args->fwd.head_dim) / sizeof(float);
    return plan;
}

size_t rk_cuda_attn_bwd_workspace_bytes(const rk_cuda_attn_bwd_args *args)
{
    return delta_bytes(&args->fwd) + all_parts_bytes(&args->fwd, count_parts(&args->fwd));
}

cudaError_t rk_attn_bwd_zero_keys(cudaStream_t stream, const rk_cuda_attn_bwd_args *args)
{
    cudaError_t err;

    if (!args->fwd.k_lens || args->fwd.num_keys == 0)
        return cudaSuccess;
    err = zero_rows(stream, args->dk, args->dk_stride, args->fwd.head_dim, &args->fwd);
    if (err != cudaSuccess)
        return err;
    return zero_rows(stream, args->dv, args->dv_stride, args->fwd.v_head_dim, &args->fwd);
}

cudaError_t rk_attn_bwd_prepare(cudaStream_t stream, const rk_cuda_attn_bwd_args *args,
                                const attn_bwd_plan *plan)
{
    const rk_cuda_attn_args &fwd = args->fwd;
    int64_t rows = (int64_t)fwd.num_tokens * fwd.num_heads;
    cudaError_t err;

    attn_delta_rows_kernel<<<(unsigned)((rows * 4 + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
        *args, plan->delta);
    err = cudaGetLastError();
    if (err != cudaSuccess || plan->num_parts == 1)
        return err == cudaSuccess ? rk_attn_bwd_zero_keys(stream, args) : err;
    return fwd.k_lens ? cudaMemsetAsync(plan->dk, 0, all_parts_bytes(&fwd, plan->num_parts), stream)
                      : cudaSuccess;
}

cudaError_t rk_attn_bwd_reduce(cudaStream_t stream, const rk_cuda_attn_bwd_args *args,
                               const attn_bwd_plan *plan)
{
    int64_t columns = RK_MAX(args->fwd.head_dim, args->fwd.v_head_dim);
    int64_t units = args->fwd.num_keys * args->fwd.num_kv_heads * columns / 4;

    if (plan->num_parts == 1)
        return cudaSuccess;
    attn_sum_parts_kernel<<<dim3((unsigned)((units + THREADS - 1) / THREADS), 2), THREADS, 0, stream>>>(
        *args, *plan);
    return cudaGetLastError();
}
