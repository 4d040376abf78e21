/* Twin of kernels/cpu/elementwise.c: passes over flat memory.
 *
 * Work split   One thread for a pack of 8 elements (adamw: 4, since its state is f32). sum_squares:
 *              RK_TILE_SUM_PARTS blocks stride over the packs, a second kernel of one block adds their sums.
 *
 * Traffic      axpby: read x (and y), write y. adamw: read 16 and write 12 bytes of state an element, and the
 *              parameter: 30 bytes in bf16. sum_squares: read x. 2^27 elements on an H200: 186 us (f32 to
 *              bf16), 968 us, 127 us (f32): 97 to 100% of 4.3 TB/s.
 *
 * Limits       2^31 - 1 blocks.
 *
 * Numerics     axpby and adamw: f32 (f64 where a tensor is), the coefficients of adamw rounded from f64.
 *              sum_squares: f64, in an order that depends on the count alone. */
#include "kernels/cuda/cuda_common.cuh"

template <class Y, class X, class A>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    axpby_kernel(Y *__restrict__ y, const X *__restrict__ x, int64_t count, A alpha, A beta, bool aligned)
{
    int64_t at = ((int64_t)blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x) * RK_TILE_PACK;
    rk_pack<X, RK_TILE_PACK> in;
    rk_pack<Y, RK_TILE_PACK> out = {};

    count -= at;
    if (count <= 0)
        return;
    in = rk_load<RK_TILE_PACK>(x + at, count, aligned);
    if (beta != 0)
        out = rk_load<RK_TILE_PACK>(y + at, count, aligned);
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        A value = alpha * rk_widen<A>(in.get(i));

        if (beta != 0)
            value += beta * rk_widen<A>(out.get(i));
        out.set(i, rk_narrow<Y>(value));
    }
    rk_store(y + at, out, count, aligned);
}

template <class Y, class X> static void launch_axpby(cudaStream_t stream, const struct rk_axpby_args *args)
{
    typedef typename rk_common_of<Y, X>::type A;
    int64_t count = rk_tensor_num_elements(args->y);
    unsigned blocks = (unsigned)rk_ceil_div(count, RK_TILE_FLAT_THREADS * RK_TILE_PACK);
    bool aligned = rk_aligned16(args->y.data) && rk_aligned16(args->x.data);

    axpby_kernel<Y, X, A><<<blocks, RK_TILE_FLAT_THREADS, 0, stream>>>(
        (Y *)args->y.data, (const X *)args->x.data, count, (A)args->alpha, (A)args->beta, aligned);
}

template <class Y> static struct rk_status *axpby_from(cudaStream_t stream, const struct rk_axpby_args *args)
{
    RK_FOR_DTYPE("axpby", args->x.dtype, X, launch_axpby<Y, X>(stream, args));
    return NULL;
}

/* Checks the grid for `count` elements, `per_thread` each. */
static struct rk_status *check_flat(const char *op, int64_t count, int per_thread)
{
    return rk_check_grid(op, rk_ceil_div(count, RK_TILE_FLAT_THREADS * per_thread));
}

extern "C" struct rk_status *rk_cuda_op_axpby(void *dev, void *stream, const struct rk_axpby_args *args)
{
    RK_TRY(check_flat("axpby", rk_tensor_num_elements(args->y), RK_TILE_PACK));
    RK_FOR_DTYPE("axpby", args->y.dtype, Y, RK_TRY(axpby_from<Y>(rk_stream_of(stream), args)));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "axpby");
}

/* Sum of squares and number of non-finite elements. */
struct square_sum {
    double sum, num_non_finite;
};

__device__ __forceinline__ square_sum block_total(square_sum part)
{
    __shared__ double shared[32];

    part.sum = rk_block_sum(part.sum, shared);
    part.num_non_finite = rk_block_sum(part.num_non_finite, shared);
    return part;
}

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    sum_squares_kernel(square_sum *__restrict__ parts, const T *__restrict__ x, int64_t count, bool aligned)
{
    int64_t stride = (int64_t)gridDim.x * RK_TILE_FLAT_THREADS * RK_TILE_PACK;
    int64_t at = ((int64_t)blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x) * RK_TILE_PACK;
    square_sum part = {0.0, 0.0};

#pragma unroll 4
    for (; at < count; at += stride) {
        rk_pack<T, RK_TILE_PACK> pack = rk_load<RK_TILE_PACK>(x + at, count - at, aligned);

#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++) {
            double value = rk_widen<double>(pack.get(i));

            part.sum += value * value;
            part.num_non_finite += isfinite(value) ? 0.0 : 1.0;
        }
    }
    part = block_total(part);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = part;
}

__global__ void __launch_bounds__(RK_TILE_SUM_PARTS)
    sum_squares_finish_kernel(double *__restrict__ out, const square_sum *__restrict__ parts, int num_parts)
{
    square_sum part = {0.0, 0.0};

    if (threadIdx.x < num_parts)
        part = parts[threadIdx.x];
    part = block_total(part);
    if (threadIdx.x == 0) {
        out[0] += part.sum;
        out[1] += part.num_non_finite;
    }
}

extern "C" struct rk_workspace rk_cuda_workspace_sum_squares(const void *dev,
                                                             const struct rk_sum_squares_args *args)
{
    (void)dev;
    (void)args;
    return {RK_TILE_SUM_PARTS * sizeof(square_sum), 0};
}

extern "C" struct rk_status *rk_cuda_op_sum_squares(void *dev, void *stream,
                                                    const struct rk_sum_squares_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    int64_t count = rk_tensor_num_elements(args->x);
    int num_parts =
        (int)RK_MIN(rk_ceil_div(count, RK_TILE_FLAT_THREADS * RK_TILE_PACK), (int64_t)RK_TILE_SUM_PARTS);
    square_sum *parts;

    RK_TRY(rk_cuda_reserve(on, &on->scratch, (size_t)num_parts * sizeof(*parts)));
    parts = (square_sum *)on->scratch.data;
    RK_FOR_DTYPE("sum_squares", args->x.dtype, T,
                 sum_squares_kernel<T><<<num_parts, RK_TILE_FLAT_THREADS, 0, on->stream>>>(
                     parts, (const T *)args->x.data, count, rk_aligned16(args->x.data)));
    sum_squares_finish_kernel<<<1, RK_TILE_SUM_PARTS, 0, on->stream>>>((double *)args->out.data, parts,
                                                                       num_parts);
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "sum_squares");
}

/* Elements of a pack of adamw: 16 bytes of f32. */
constexpr int STATE_PACK = 4;

template <class A> struct adamw_coefficients {
    A lr, beta1, beta2, one_minus_beta1, one_minus_beta2, eps, weight_decay, correction1, correction2,
        grad_scale;
};

template <class A> static adamw_coefficients<A> coefficients_of(const struct rk_adamw_args *args)
{
    return {(A)args->lr,
            (A)args->beta1,
            (A)args->beta2,
            (A)(1.0 - args->beta1),
            (A)(1.0 - args->beta2),
            (A)args->eps,
            (A)args->weight_decay,
            (A)args->correction1,
            (A)args->correction2,
            (A)args->grad_scale};
}

/* param and master may be the same array. */
template <class T> struct adamw_arrays {
    T *param;
    rk_acc<T> *master, *m, *v;
    const rk_acc<T> *grad;
};

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    adamw_kernel(adamw_arrays<T> at, int64_t count, adamw_coefficients<rk_acc<T>> c, bool aligned)
{
    typedef rk_acc<T> A;
    int64_t begin = ((int64_t)blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x) * STATE_PACK;
    rk_pack<A, STATE_PACK> w, m, v, g;
    rk_pack<T, STATE_PACK> param = {};

    count -= begin;
    if (count <= 0)
        return;
    w = rk_load<STATE_PACK>(at.master + begin, count, aligned);
    m = rk_load<STATE_PACK>(at.m + begin, count, aligned);
    v = rk_load<STATE_PACK>(at.v + begin, count, aligned);
    g = rk_load<STATE_PACK>(at.grad + begin, count, aligned);
#pragma unroll
    for (int i = 0; i < STATE_PACK; i++) {
        A grad = g.get(i) * c.grad_scale, step;

        m.set(i, c.beta1 * m.get(i) + c.one_minus_beta1 * grad);
        v.set(i, c.beta2 * v.get(i) + c.one_minus_beta2 * grad * grad);
        step = m.get(i) / c.correction1 / (sqrt(v.get(i) / c.correction2) + c.eps);
        w.set(i, w.get(i) - c.lr * (step + c.weight_decay * w.get(i)));
        param.set(i, rk_narrow<T>(w.get(i)));
    }
    rk_store(at.m + begin, m, count, aligned);
    rk_store(at.v + begin, v, count, aligned);
    rk_store(at.master + begin, w, count, aligned);
    if ((const void *)at.param != (const void *)at.master)
        rk_store(at.param + begin, param, count, aligned);
}

template <class T> static void launch_adamw(cudaStream_t stream, const struct rk_adamw_args *args)
{
    typedef rk_acc<T> A;
    int64_t count = args->param.shape[0];
    unsigned blocks = (unsigned)rk_ceil_div(count, RK_TILE_FLAT_THREADS * STATE_PACK);
    bool aligned = rk_aligned16(args->param.data) && rk_aligned16(args->master.data) &&
                   rk_aligned16(args->m.data) && rk_aligned16(args->v.data) && rk_aligned16(args->grad.data);
    adamw_arrays<T> at = {(T *)args->param.data, (A *)args->master.data, (A *)args->m.data, (A *)args->v.data,
                          (const A *)args->grad.data};

    adamw_kernel<T>
        <<<blocks, RK_TILE_FLAT_THREADS, 0, stream>>>(at, count, coefficients_of<A>(args), aligned);
}

extern "C" struct rk_status *rk_cuda_op_adamw(void *dev, void *stream, const struct rk_adamw_args *args)
{
    RK_TRY(check_flat("adamw", args->param.shape[0], STATE_PACK));
    RK_FOR_DTYPE("adamw", args->param.dtype, T, launch_adamw<T>(rk_stream_of(stream), args));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "adamw");
}
