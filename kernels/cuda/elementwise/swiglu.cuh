/* The activation of swiglu.cu, and of GEMMs that end with it. Compile with -fmad=false. */
#ifndef RK_CUDA_SWIGLU_CUH
#define RK_CUDA_SWIGLU_CUH

__device__ __forceinline__ float rk_sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + expf(-x));
}

__device__ __forceinline__ double rk_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

template <class A> __device__ __forceinline__ A rk_swiglu(A gate, A up)
{
    return gate * rk_sigmoid(gate) * up;
}

#endif
