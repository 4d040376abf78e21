/* The wgmma instructions of attn_sm90.cuh, which includes this file on compute capability 9.0. */
#ifndef RK_CUDA_ATTN_WGMMA_CUH
#define RK_CUDA_ATTN_WGMMA_CUH

#include <stdint.h>

/* One k16 step of d[64, N] (+)= A B for a warpgroup. ss has both operands in shared memory, with k along the
 * columns there, or along the rows (TA, TB); rs has A in registers and B with k along the rows. */
template <int N> struct attn_wgmma;

/* The registers of d, and their numbers. */
#define R8(i)                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define R16(i) R8(i), R8(i + 8)
#define R32(i) R16(i), R16(i + 16)
#define L16    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define L24    L16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define L32    L24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define L64                                                                                                 \
    L32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
        "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define L96                                                                                                 \
    L64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
        "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define L128                                                                                             \
    L96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* at to at5: the operand numbers after those of d. */
#define WGMMA(size, list, at, at1, at2, at3, at4, at5, ...)                                            \
    template <> struct attn_wgmma<size> {                                                              \
        template <int TA, int TB>                                                                      \
        static __device__ inline void ss(float (&d)[size / 2], uint64_t a, uint64_t b, int accumulate) \
        {                                                                                              \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #at2 ", 0;\n"                              \
                         "wgmma.mma_async.sync.aligned.m64n" #size "k16.f32.bf16.bf16 {" list "}, "    \
                         "%" #at ", %" #at1 ", p, 1, 1, %" #at3 ", %" #at4 "; }"                       \
                         : __VA_ARGS__                                                                 \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(TA), "n"(TB));                         \
        }                                                                                              \
                                                                                                       \
        static __device__ inline void rs(float (&d)[size / 2], const uint32_t *a, uint64_t b,          \
                                         int accumulate)                                               \
        {                                                                                              \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #at5 ", 0;\n"                              \
                         "wgmma.mma_async.sync.aligned.m64n" #size "k16.f32.bf16.bf16 {" list "}, "    \
                         "{%" #at ", %" #at1 ", %" #at2 ", %" #at3 "}, %" #at4 ", p, 1, 1, 1; }"       \
                         : __VA_ARGS__                                                                 \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));       \
        }                                                                                              \
    }

WGMMA(32, L16, 16, 17, 18, 19, 20, 21, R16(0));
WGMMA(48, L24, 24, 25, 26, 27, 28, 29, R16(0), R8(16));
WGMMA(64, L32, 32, 33, 34, 35, 36, 37, R32(0));
WGMMA(128, L64, 64, 65, 66, 67, 68, 69, R32(0), R32(32));
WGMMA(192, L96, 96, 97, 98, 99, 100, 101, R32(0), R32(32), R32(64));
WGMMA(256, L128, 128, 129, 130, 131, 132, 133, R32(0), R32(32), R32(64), R32(96));

#undef WGMMA
#undef L128
#undef L96
#undef L64
#undef L32
#undef L24
#undef L16
#undef R32
#undef R16
#undef R8

#endif
