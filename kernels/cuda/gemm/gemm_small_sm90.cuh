/* The kernel of gemm_small_sm90.cu, which documents it. */
#ifndef RK_CUDA_GEMM_SMALL_SM90_CUH
#define RK_CUDA_GEMM_SMALL_SM90_CUH

#include "kernels/cuda/attention/attn_sm90.cuh"
#include "kernels/cuda/cuda_common.cuh"
#include "kernels/cuda/elementwise/swiglu.cuh"

namespace
{

constexpr int MAX_STAGES = 10, MAX_BOXES = 4, TILE_M = 64;
constexpr int CONSUMER_WARPS = 4, CONSUMERS = CONSUMER_WARPS * 32, THREADS = CONSUMERS + 64;

/* Boxes of 64 columns of K in a stage: one is enough work for a wide tile. */
constexpr int boxes_of(int tile_n)
{
    return tile_n >= 96 ? 1 : tile_n >= 64 ? 2 : MAX_BOXES;
}

/* Bytes of a stage of A, for TILE_M rows, and of B, for the tile's. */
constexpr int stage_bytes(int rows, int tile_n)
{
    return rows * 128 * boxes_of(tile_n);
}

struct small_args {
    rk_bf16 *c;          /* or the output of swiglu */
    const rk_bf16 *bias; /* may be NULL */
    int64_t ldc;
    int m, n;
    int half;                  /* swiglu: n / 2; else 0 */
    int num_boxes, part_boxes; /* boxes of 64 over all of K, and over a part of it */
    int num_stages;            /* of the rings */
    int cluster_m, cluster_n, num_parts;
    int box_rows; /* rows of A that a thread block loads and computes */
    bool b_is_settled;
};

struct small_maps {
    CUtensorMap a, b;
};

struct small_barriers {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
};

/* Stages of A or B in shared memory. */
struct small_ring {
    uint8_t *base;
    small_barriers *bars;
    int num_stages, bytes; /* of a stage */
};

#if RK_ATTN_HAS_SM90

/* --- wgmma: sum[64, TN] += A B^T, one k16 step, both in shared memory with k along the rows --- */

template <int TN> struct small_mma;

#define R4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define R8(i)  R4(i), R4(i + 4)
#define R16(i) R8(i), R8(i + 8)
#define L4     "%0, %1, %2, %3"
#define L8     L4 ", %4, %5, %6, %7"
#define L12    L8 ", %8, %9, %10, %11"
#define L16    L12 ", %12, %13, %14, %15"
#define L20    L16 ", %16, %17, %18, %19"
#define L24    L20 ", %20, %21, %22, %23"
#define L32    L24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define L36    L32 ", %32, %33, %34, %35"
#define L40    L36 ", %36, %37, %38, %39"
#define L48    L40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define L56    L48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define L64    L56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define L72    L64 ", %64, %65, %66, %67, %68, %69, %70, %71"

/* a and b: the operand numbers after those of d. */
#define SMALL_MMA(tn, list, a_at, b_at, ...)                                                      \
    template <> struct small_mma<tn> {                                                            \
        static __device__ inline void add(float (&d)[tn / 2], uint64_t a, uint64_t b)             \
        {                                                                                         \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"                                 \
                         "wgmma.mma_async.sync.aligned.m64n" #tn "k16.f32.bf16.bf16 {" list "}, " \
                         "%" #a_at ", %" #b_at ", p, 1, 1, 0, 0; }"                               \
                         : __VA_ARGS__                                                            \
                         : "l"(a), "l"(b));                                                       \
        }                                                                                         \
    }

SMALL_MMA(8, L4, 4, 5, R4(0));
SMALL_MMA(16, L8, 8, 9, R8(0));
SMALL_MMA(24, L12, 12, 13, R8(0), R4(8));
SMALL_MMA(32, L16, 16, 17, R16(0));
SMALL_MMA(40, L20, 20, 21, R16(0), R4(16));
SMALL_MMA(48, L24, 24, 25, R16(0), R8(16));
SMALL_MMA(64, L32, 32, 33, R16(0), R16(16));
SMALL_MMA(72, L36, 36, 37, R16(0), R16(16), R4(32));
SMALL_MMA(96, L48, 48, 49, R16(0), R16(16), R16(32));
SMALL_MMA(144, L72, 72, 73, R16(0), R16(16), R16(32), R16(48), R8(64));

#undef SMALL_MMA
#undef L72
#undef L64
#undef L56
#undef L48
#undef L40
#undef L36
#undef L32
#undef L24
#undef L20
#undef L16
#undef L12
#undef L8
#undef L4
#undef R16
#undef R8
#undef R4

/* --- clusters --- */

__device__ inline uint32_t cluster_rank()
{
    uint32_t rank;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Barrier of all threads of the cluster. Orders no memory except attn_bar_init_fence(). */
__device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* The earlier reads of the stage were done by the tensor cores and are complete: no fence is needed, which
 * would take a microsecond. */
__device__ inline void remote_arrive(uint64_t *bar, uint32_t rank)
{
    asm volatile("{ .reg .b32 at; mapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [at]; }" ::"r"(attn_smem(bar)),
                 "r"(rank)
                 : "memory");
}

/* Copies the box of 64 columns at k and all rows from `row` to the same address in every block in
 * `blocks`. */
__device__ inline void load_box(void *dst, const CUtensorMap *map, uint64_t *bar, int k, int row,
                                uint32_t blocks)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5, %5}], [%2], %6;" ::"r"(attn_smem(dst)),
                 "l"(map), "r"(attn_smem(bar)), "r"(k), "r"(row), "r"(0), "h"((uint16_t)blocks)
                 : "memory");
}

/* Position of a thread block in its cluster, and its work. */
struct small_place {
    int m, n, part;           /* along M, N and K */
    uint32_t a, b;            /* blocks that share its rows of A; of B */
    int m_row, n_row;         /* first rows of A and B */
    int first_box, num_boxes; /* of K */
};

__device__ inline small_place find_place(const small_args &args, int tile_n)
{
    int rank = (int)cluster_rank(), plane = args.cluster_m * args.cluster_n;
    small_place place;

    place.m = rank % args.cluster_m;
    place.n = rank % plane / args.cluster_m;
    place.part = rank / plane;
    place.a = place.b = 0;
    for (int i = 0; i < args.cluster_n; i++)
        place.a |= 1u << (place.part * plane + place.m + i * args.cluster_m);
    for (int i = 0; i < args.cluster_m; i++)
        place.b |= 1u << (place.part * plane + i + place.n * args.cluster_m);
    place.m_row = place.m * args.box_rows;
    place.n_row = ((int)blockIdx.x / (plane * args.num_parts) * args.cluster_n + place.n) *
                  (args.half ? tile_n / 2 : tile_n);
    place.first_box = place.part * args.part_boxes;
    place.num_boxes = max(min(args.part_boxes, args.num_boxes - place.first_box), 0);
    return place;
}

/* --- the rings --- */

/* A stage of a ring, and the parity of its barriers. */
struct small_turn {
    int stage, parity;

    __device__ inline void next(const small_ring &ring)
    {
        stage = stage + 1 == ring.num_stages ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

/* Source of the stages of A or B of a thread block. */
struct small_source {
    const CUtensorMap *map;
    int row, rows;   /* rows that the thread block uses */
    int first_box;   /* of K */
    uint32_t blocks; /* blocks of the cluster that use the same rows */
    int turn, turns; /* they load boxes in turns */
    int half;        /* offset to the same number of further rows, or 0 */
};

/* Called by one thread. At the end it waits until all stages have been read: then no other block will signal
 * this block's barriers, and the block may exit. */
template <int BOXES>
__device__ inline void fill(const small_ring &ring, const small_source &from, int num_stages)
{
    small_turn turn = {0, 0};

    for (int s = 0; s < num_stages; s++) {
        uint64_t *bar = &ring.bars->full[turn.stage];

        attn_bar_wait(&ring.bars->empty[turn.stage], turn.parity ^ 1);
        attn_bar_expect(bar, from.rows * 128 * BOXES);
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            int box = s * BOXES + i;

            if ((box & (from.turns - 1)) != from.turn)
                continue;
            load_box(ring.base + turn.stage * ring.bytes + i * (ring.bytes / BOXES), from.map, bar,
                     (from.first_box + box) * 64, from.row, from.blocks);
            if (from.half)
                load_box(ring.base + turn.stage * ring.bytes + i * (ring.bytes / BOXES) + from.rows * 64,
                         from.map, bar, (from.first_box + box) * 64, from.row + from.half, from.blocks);
        }
        turn.next(ring);
    }
    for (int i = 0; i < ring.num_stages; i++) {
        attn_bar_wait(&ring.bars->empty[turn.stage], turn.parity ^ 1);
        turn.next(ring);
    }
}

/* Stages of K that a thread block processes. */
template <int TN> __device__ inline int stages_of(const small_place &place)
{
    return (place.num_boxes + boxes_of(TN) - 1) / boxes_of(TN);
}

template <int TN>
__device__ inline void produce_a(const small_ring &ring, const small_maps &maps, const small_args &args,
                                 const small_place &place)
{
    small_source from = {&maps.a, place.m_row, args.box_rows,  place.first_box,
                         place.a, place.n,     args.cluster_n, 0};

    rk_wait_for_stream();
    fill<boxes_of(TN)>(ring, from, stages_of<TN>(place));
}

/* If the previous kernel does not write B, it is loaded before that kernel has ended. */
template <int TN>
__device__ inline void produce_b(const small_ring &ring, const small_maps &maps, const small_args &args,
                                 const small_place &place)
{
    small_source from = {&maps.b, place.n_row,    TN,       place.first_box, place.b,
                         place.m, args.cluster_m, args.half};

    if (!args.b_is_settled)
        rk_wait_for_stream();
    fill<boxes_of(TN)>(ring, from, stages_of<TN>(place));
}

/* --- the products --- */

/* The thread block that this lane signals when a stage of A (or of B) may be overwritten: one lane for each
 * block that loads into this one; -1: none. */
__device__ inline int whom_to_tell(const small_place &place, bool *is_b)
{
    int lane = attn_lane() % 16;
    uint32_t blocks;

    *is_b = attn_lane() >= 16;
    blocks = *is_b ? place.b : place.a;
    return lane < __popc(blocks) ? (int)__fns(blocks, 0, lane + 1) : -1;
}

/* The GEMM of a stage overlaps the wait for the next stage. */
template <int TN>
__device__ inline void consume(const small_ring &a_ring, const small_ring &b_ring, const small_place &place,
                               float (&sum)[TN / 2])
{
    bool is_b;
    int told = whom_to_tell(place, &is_b);
    small_turn a_turn = {0, 0}, b_turn = {0, 0};
    int num_stages = stages_of<TN>(place);
    uint64_t *before = NULL; /* barrier of the previous stage, to be signalled */

    for (int s = 0; s < num_stages; s++) {
        uint64_t a = attn_desc_rows((const bf16 *)(a_ring.base + a_turn.stage * a_ring.bytes), 0);
        uint64_t b = attn_desc_rows((const bf16 *)(b_ring.base + b_turn.stage * b_ring.bytes), 0);

        attn_bar_wait(&b_ring.bars->full[b_turn.stage], b_turn.parity);
        attn_bar_wait(&a_ring.bars->full[a_turn.stage], a_turn.parity);
        attn_wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4 * boxes_of(TN); step++)
            small_mma<TN>::add(sum, attn_desc_step(a, step, TILE_M), attn_desc_step(b, step, TN));
        attn_wgmma_commit();
        attn_wgmma_wait<1>();
        if (before && told >= 0)
            remote_arrive(before, (uint32_t)told);
        before = is_b ? &b_ring.bars->empty[b_turn.stage] : &a_ring.bars->empty[a_turn.stage];
        a_turn.next(a_ring);
        b_turn.next(b_ring);
    }
    attn_wgmma_wait<0>();
    attn_pin(sum);
    if (before && told >= 0)
        remote_arrive(before, (uint32_t)told);
}

/* Stores columns 8 j.. of this thread block's tile: `sum` has two of them, of a row and of the row eight
 * below. */
__device__ inline void store(const small_args &args, const small_place &place, int j, const float (&sum)[4])
{
    int lane = attn_lane(), own_row = threadIdx.x / 32 * 16 + lane / 4;
    int col = place.n_row + j * 8 + lane % 4 * 2;
    float bias[2] = {0.0f, 0.0f};

    if (col >= args.n)
        return;
    if (args.bias) {
        bias[0] = __bfloat162float(args.bias[col]);
        bias[1] = __bfloat162float(args.bias[col + 1]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float low = sum[2 * r], high = sum[2 * r + 1];
        int row = place.m_row + own_row + 8 * r;

        if (args.bias) { /* not 0.0f: -0 + 0 is 0 */
            low += bias[0];
            high += bias[1];
        }
        if (own_row + 8 * r < args.box_rows && row < args.m)
            *reinterpret_cast<uint32_t *>(args.c + row * args.ldc + col) = attn_pack(low, high);
    }
}

/* ... and of the columns of the up projection, whose gates are `gate`: applies the activation. */
__device__ inline void store_swiglu(const small_args &args, const small_place &place, int j,
                                    const float (&gate)[4], const float (&up)[4])
{
    int lane = attn_lane(), own_row = threadIdx.x / 32 * 16 + lane / 4;
    int col = place.n_row + j * 8 + lane % 4 * 2;
    float y[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        y[i] = rk_swiglu(__bfloat162float(__float2bfloat16_rn(gate[i])),
                         __bfloat162float(__float2bfloat16_rn(up[i])));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = place.m_row + own_row + 8 * r;

        if (col < args.half && own_row + 8 * r < args.box_rows && row < args.m)
            *reinterpret_cast<uint32_t *>(args.c + row * args.ldc + col) = attn_pack(y[2 * r], y[2 * r + 1]);
    }
}

/* The first half of the tile are gates, the second half the values that they multiply. */
template <int TN>
__device__ inline void store_activated(const small_args &args, const small_place &place,
                                       const float (&sum)[TN / 2])
{
#pragma unroll
    for (int j = 0; j < TN / 16; j++) {
        int up = 4 * j + TN / 4;

        store_swiglu(args, place, j, {sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]},
                     {sum[up], sum[up + 1], sum[up + 2], sum[up + 3]});
    }
}

template <int TN>
__device__ inline void store_all(const small_args &args, const small_place &place, const float (&sum)[TN / 2])
{
#pragma unroll
    for (int j = 0; j < TN / 8; j++)
        store(args, place, j, {sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]});
}

/* --- split K: every thread block of a cluster sums all parts of some columns, in ascending order --- */

/* Barrier that makes earlier writes to shared memory visible to all threads of the cluster. */
__device__ inline void cluster_sync_memory()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ inline float4 load_remote(const float4 *at, uint32_t rank)
{
    float4 value;

    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(attn_smem(at)), "r"(rank)
                 : "memory");
    return value;
}

/* Overwrites the ring, which all warps of this block have read, with the sums. */
template <int TN> __device__ inline void share_sums(float4 *shared, const float (&sum)[TN / 2])
{
    attn_named_sync(1, CONSUMERS);
#pragma unroll
    for (int j = 0; j < TN / 8; j++)
        shared[j * CONSUMERS + threadIdx.x] =
            make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
}

template <int TN>
__device__ inline void store_shared(const small_args &args, const small_place &place, const float4 *shared)
{
    uint32_t plane = args.cluster_m * args.cluster_n, first = cluster_rank() % plane;

    for (int j = place.part; j < TN / 8; j += args.num_parts) {
        const float4 *at = shared + j * CONSUMERS + threadIdx.x;
        float4 sum = load_remote(at, first);

        for (int part = 1; part * args.part_boxes < args.num_boxes; part++) {
            float4 next = load_remote(at, first + part * plane);

            sum.x += next.x;
            sum.y += next.y;
            sum.z += next.z;
            sum.w += next.w;
        }
        store(args, place, j, {sum.x, sum.y, sum.z, sum.w});
    }
}

__device__ inline void init_ring(small_ring *ring, int num_blocks)
{
    for (int i = 0; i < ring->num_stages; i++) {
        attn_bar_init(&ring->bars->full[i], 1);
        attn_bar_init(&ring->bars->empty[i], CONSUMER_WARPS * num_blocks);
    }
}

#endif

template <int TN>
__global__ void __launch_bounds__(THREADS)
    gemm_small_kernel(const __grid_constant__ small_maps maps, const small_args args)
{
#if RK_ATTN_HAS_SM90
    extern __shared__ uint8_t raw[];
    __shared__ small_barriers a_bars, b_bars;
    small_place place = find_place(args, TN);
    uint8_t *base = raw + (-attn_smem(raw) & 1023);
    small_ring a_ring = {base, &a_bars, args.num_stages, stage_bytes(TILE_M, TN)};
    small_ring b_ring = {base + a_ring.num_stages * a_ring.bytes, &b_bars, args.num_stages,
                         stage_bytes(TN, TN)};
    bool is_consumer = threadIdx.x < CONSUMERS;
    float sum[TN / 2] = {};

    if (threadIdx.x == 0) {
        init_ring(&a_ring, __popc(place.a));
        init_ring(&b_ring, __popc(place.b));
        attn_bar_init_fence();
    }
    cluster_sync(); /* the barriers of all blocks are initialized */
    if (is_consumer)
        consume<TN>(a_ring, b_ring, place, sum);
    else if (threadIdx.x == CONSUMERS)
        produce_b<TN>(b_ring, maps, args, place);
    else if (threadIdx.x == CONSUMERS + 32)
        produce_a<TN>(a_ring, maps, args, place);
    if (args.num_parts == 1) {
        if (is_consumer && args.half)
            store_activated<TN>(args, place, sum);
        else if (is_consumer)
            store_all<TN>(args, place, sum);
        return;
    }
    if (is_consumer)
        share_sums<TN>((float4 *)base, sum);
    cluster_sync_memory(); /* the sums of all blocks are written */
    if (is_consumer)
        store_shared<TN>(args, place, (const float4 *)base);
    cluster_sync_memory(); /* a block must not exit before its sums have been read */
#endif
}

} // namespace

#endif
