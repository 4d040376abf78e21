/* Counter-based random words on the device, as defined in base/rk_rng.h. */
#ifndef RK_CUDA_PHILOX_CUH
#define RK_CUDA_PHILOX_CUH

#include <stdint.h>

/* One block of four random words, as rk_philox4x32. */
__device__ __forceinline__ uint4 rk_philox(uint4 counter, uint2 key)
{
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        uint32_t high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;

        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

#endif
