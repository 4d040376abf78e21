/* The tensor-core instructions of grouped_gemm_sm90.cuh. */
#ifndef RK_CUDA_GROUPED_MMA_CUH
#define RK_CUDA_GROUPED_MMA_CUH

#include "kernels/cuda/attention/attn_sm90.cuh"

#if RK_ATTN_HAS_SM90

namespace
{

/* --- wgmma: sum[64, N] (+)= A B, one k16 step, both in shared memory. TA, TB: k along the rows there --- */

template <int N, int TA, int TB> struct grouped_mma;

#define R4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define R16(i) R4(i), R4(i + 4), R4(i + 8), R4(i + 12)
#define R32(i) R16(i), R16(i + 16)
#define L16    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define L32    L16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define L64                                                                                  \
    L32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define L96                                                                                  \
    L64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define L128                                                                                             \
    L96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* a_at and the next two: the operand numbers after those of d. */
#define GROUPED_MMA(size, list, a_at, b_at, add_at, ta_at, tb_at, ...)                                  \
    template <int TA, int TB> struct grouped_mma<size, TA, TB> {                                        \
        static __device__ inline void add(float (&d)[size / 2], uint64_t a, uint64_t b, int accumulate) \
        {                                                                                               \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_at ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #size "k16.f32.bf16.bf16 {" list "}, "     \
                         "%" #a_at ", %" #b_at ", p, 1, 1, %" #ta_at ", %" #tb_at "; }"                 \
                         : __VA_ARGS__                                                                  \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(TA), "n"(TB));                          \
        }                                                                                               \
    }

GROUPED_MMA(32, L16, 16, 17, 18, 19, 20, R16(0));
GROUPED_MMA(64, L32, 32, 33, 34, 35, 36, R32(0));
GROUPED_MMA(128, L64, 64, 65, 66, 67, 68, R32(0), R32(32));
GROUPED_MMA(192, L96, 96, 97, 98, 99, 100, R32(0), R32(32), R32(64));
GROUPED_MMA(256, L128, 128, 129, 130, 131, 132, R32(0), R32(32), R32(64), R32(96));

#undef GROUPED_MMA
#undef L128
#undef L96
#undef L64
#undef L32
#undef L16
#undef R32
#undef R16
#undef R4

} // namespace

#endif

#endif
