/* Goal: every operator refuses invalid arguments, naming operator, argument, value and expectation, and does
 * nothing for an empty call. Method: valid arguments with one change at a time. */
#include "base/rk_alloc.h"
#include "kernels/rk_kernels.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdbool.h>

#define F32  RK_DTYPE_F32
#define F64  RK_DTYPE_F64
#define I32  RK_DTYPE_I32
#define BF16 RK_DTYPE_BF16

#define MAX_TENSORS 1024

/* Zeroed memory for tensors that no two arguments share. */
static struct rk_device *device;
static struct rk_stream *stream;
static void *memory[MAX_TENSORS];
static int num_tensors;

static const rk_tensor_t none;

static rk_tensor_t make(rk_tensor_t t)
{
    assert_true(num_tensors < MAX_TENSORS);
    assert_ok(rk_device_alloc(device, &t.data, rk_tensor_bytes(t), "test"));
    memory[num_tensors++] = t.data;
    return t;
}

static rk_tensor_t t1(rk_dtype_t dtype, int64_t a)
{
    return make(rk_tensor_1d(NULL, dtype, a));
}

static rk_tensor_t t2(rk_dtype_t dtype, int64_t a, int64_t b)
{
    return make(rk_tensor_2d(NULL, dtype, a, b));
}

static rk_tensor_t t3(rk_dtype_t dtype, int64_t a, int64_t b, int64_t c)
{
    return make(rk_tensor_3d(NULL, dtype, a, b, c));
}

static rk_tensor_t t4(rk_dtype_t dtype, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return make(rk_tensor_4d(NULL, dtype, a, b, c, d));
}

static int setup(void **state)
{
    struct rk_device_config config = {.struct_size = sizeof(config), .name = "cpu", .num_threads = 1};

    (void)state;
    assert_ok(rk_device_open(&device, &config));
    assert_ok(rk_stream_create(&stream, device, "test"));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    while (num_tensors > 0)
        rk_device_free(device, memory[--num_tensors]);
    rk_stream_destroy(stream);
    rk_device_close(device);
    return 0;
}

/* I32 [2]: the bounds of one sequence. */
static rk_tensor_t bounds(int32_t last)
{
    const int32_t values[2] = {0, last};
    rk_tensor_t t = t1(I32, 2);

    assert_ok(rk_stream_copy(stream, t.data, values, sizeof(values), RK_COPY_H2D));
    return t;
}

/* `op` with one member of the arguments changed must fail with that message. */
#define BAD(op, good, text, ...)                                      \
    do {                                                              \
        __typeof__(good) bad_ = (good);                               \
                                                                      \
        bad_.__VA_ARGS__;                                             \
        assert_fails(op(stream, &bad_), RK_INVALID_ARGUMENT, (text)); \
    } while (0)

static void test_gemm_bad_arguments_fail(void **state)
{
    struct rk_gemm_args good = {
        .c = t2(F32, 2, 3), .a = t2(F32, 2, 4), .b = t2(F32, 4, 3), .bias = t1(F32, 3), .alpha = 1.0f};
    rk_tensor_t overlapping = t2(F32, 2, 4), unknown = good.a;

    (void)state;
    overlapping.row_stride = 3;
    unknown.dtype = (rk_dtype_t)99;
    assert_ok(rk_gemm(stream, &good));
    BAD(rk_gemm, good, "gemm: b is f32 [3, 4], expected f32 [4, 4]", b = t2(F32, 3, 4));
    BAD(rk_gemm, good, "gemm: b is f32 [4, 3], expected f32 [4, 4]", trans_b = true);
    BAD(rk_gemm, good, "gemm: b is f32 [4, 3], expected f32 [2, 3]", trans_a = true);
    BAD(rk_gemm, good, "gemm: b is bf16 [4, 3], expected f32 [4, 3]", b = t2(BF16, 4, 3));
    BAD(rk_gemm, good, "gemm: c is f32 [2, 4], expected f32 [2, 3]", c = t2(F32, 2, 4));
    BAD(rk_gemm, good, "gemm: c is i32, expected a float type", c = t2(I32, 2, 3));
    BAD(rk_gemm, good, "gemm: bias is f32 [2], expected f32 [3]", bias = t1(F32, 2));
    BAD(rk_gemm, good, "gemm: c has 3 columns, expected an even number for swiglu", swiglu = t2(F32, 2, 1));
    BAD(rk_gemm, good, "gemm: a is i32, expected a float type", a = t2(I32, 2, 4));
    BAD(rk_gemm, good, "gemm: a has rank 1, expected 2", a = t1(F32, 8));
    BAD(rk_gemm, good, "gemm: a has rank 0, expected 1 to 4", a = none);
    BAD(rk_gemm, good, "gemm: a is none, expected a tensor", a.data = NULL);
    BAD(rk_gemm, good, "gemm: a has row_stride=3, expected >= 4", a = overlapping);
    BAD(rk_gemm, good, "gemm: a has dtype 99, expected a known one", a = unknown);
    BAD(rk_gemm, good, "gemm: c aliases a", c.data = good.a.data);
    BAD(rk_gemm, good, "gemm: c aliases b", c.data = good.b.data);
}

static void test_bias_bwd_bad_arguments_fail(void **state)
{
    struct rk_bias_bwd_args good = {.dbias = t1(F32, 3), .dy = t2(BF16, 2, 3)};

    (void)state;
    assert_ok(rk_bias_bwd(stream, &good));
    BAD(rk_bias_bwd, good, "bias_bwd: dbias is f32 [2], expected f32 [3]", dbias = t1(F32, 2));
    BAD(rk_bias_bwd, good, "bias_bwd: dbias is f64 [3], expected bf16 [3]", dbias = t1(F64, 3));
    BAD(rk_bias_bwd, good, "bias_bwd: dy has rank 1, expected 2", dy = t1(BF16, 3));
    BAD(rk_bias_bwd, good, "bias_bwd: dbias aliases dy", dbias.data = good.dy.data);
}

static void test_embed_bad_arguments_fail(void **state)
{
    struct rk_embed_fwd_args fwd = {.out = t2(F32, 5, 4), .table = t2(F32, 7, 4), .tokens = t1(I32, 5)};
    struct rk_embed_bwd_args bwd = {.dtable = t2(F32, 7, 4), .dout = t2(BF16, 5, 4), .tokens = t1(I32, 5)};

    (void)state;
    assert_ok(rk_embed_fwd(stream, &fwd));
    BAD(rk_embed_fwd, fwd, "embed_fwd: out is f32 [5, 3], expected f32 [5, 4]", out = t2(F32, 5, 3));
    BAD(rk_embed_fwd, fwd, "embed_fwd: tokens is i32 [4], expected i32 [5]", tokens = t1(I32, 4));
    BAD(rk_embed_fwd, fwd, "embed_fwd: tokens is i64 [5], expected i32 [5]", tokens = t1(RK_DTYPE_I64, 5));
    BAD(rk_embed_fwd, fwd, "embed_fwd: vocab_begin=-1, expected >= 0", vocab_begin = -1);
    assert_ok(rk_embed_bwd(stream, &bwd));
    bwd.dtable = t2(BF16, 7, 4);
    assert_ok(rk_embed_bwd(stream, &bwd));
    BAD(rk_embed_bwd, bwd, "embed_bwd: dtable is f64 [7, 4], expected bf16 [7, 4]", dtable = t2(F64, 7, 4));
    BAD(rk_embed_bwd, bwd, "embed_bwd: dtable is bf16 [7, 5], expected bf16 [7, 4]", dtable = t2(BF16, 7, 5));
    BAD(rk_embed_bwd, bwd, "embed_bwd: tokens is i32 [6], expected i32 [5]", tokens = t1(I32, 6));
    BAD(rk_embed_bwd, bwd, "embed_bwd: vocab_begin=-1, expected >= 0", vocab_begin = -1);
}

static void test_rmsnorm_fwd_bad_arguments_fail(void **state)
{
    struct rk_rmsnorm_fwd_args good = {.y = t2(BF16, 3, 4),
                                       .rstd = t1(F32, 3),
                                       .x = t2(BF16, 3, 4),
                                       .residual = t2(BF16, 3, 4),
                                       .sum = t2(BF16, 3, 4),
                                       .weight = t1(BF16, 4)};

    (void)state;
    assert_ok(rk_rmsnorm_fwd(stream, &good));
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: y is bf16 [3, 5], expected bf16 [3, 4]", y = t2(BF16, 3, 5));
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: rstd is bf16 [3], expected f32 [3]", rstd = t1(BF16, 3));
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: residual is bf16 [2, 4], expected", residual = t2(BF16, 2, 4));
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: sum has rank 0, expected", sum = none);
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: sum is given without residual, expected none", residual = none);
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: weight is f32 [4], expected bf16 [4]", weight = t1(F32, 4));
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: eps=-1, expected finite and >= 0", eps = -1.0f);
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: eps=nan, expected finite and >= 0", eps = NAN);
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: x has no columns", x = t2(BF16, 3, 0));
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: y aliases x", y.data = good.x.data);
    BAD(rk_rmsnorm_fwd, good, "rmsnorm_fwd: y aliases sum", y.data = good.sum.data);
}

static void test_rmsnorm_bwd_bad_arguments_fail(void **state)
{
    struct rk_rmsnorm_bwd_args good = {.dx = t2(F32, 3, 4),
                                       .dweight = t1(F32, 4),
                                       .dy = t2(F32, 3, 4),
                                       .x = t2(F32, 3, 4),
                                       .dresidual = t2(F32, 3, 4),
                                       .weight = t1(F32, 4),
                                       .rstd = t1(F32, 3)};

    (void)state;
    assert_ok(rk_rmsnorm_bwd(stream, &good));
    BAD(rk_rmsnorm_bwd, good, "rmsnorm_bwd: dx is f32 [4, 4], expected f32 [3, 4]", dx = t2(F32, 4, 4));
    BAD(rk_rmsnorm_bwd, good, "rmsnorm_bwd: x is f64 [3, 4], expected f32 [3, 4]", x = t2(F64, 3, 4));
    BAD(rk_rmsnorm_bwd, good, "rmsnorm_bwd: dweight is f32 [3], expected f32 [4]", dweight = t1(F32, 3));
    BAD(rk_rmsnorm_bwd, good, "rmsnorm_bwd: dresidual is f32 [3, 3]", dresidual = t2(F32, 3, 3));
    BAD(rk_rmsnorm_bwd, good, "rmsnorm_bwd: weight is f32 [5], expected f32 [4]", weight = t1(F32, 5));
    BAD(rk_rmsnorm_bwd, good, "rmsnorm_bwd: rstd is f64 [3], expected f32 [3]", rstd = t1(F64, 3));
    BAD(rk_rmsnorm_bwd, good, "rmsnorm_bwd: dx aliases dy", dx.data = good.dy.data);
}

static void test_head_norm_bad_arguments_fail(void **state)
{
    struct rk_head_norm_fwd_args fwd = {
        .y = t3(BF16, 5, 3, 4), .rstd = t2(F32, 5, 3), .x = t3(BF16, 5, 3, 4), .weight = t1(BF16, 4)};
    struct rk_head_norm_bwd_args bwd = {.dx = t3(F32, 5, 3, 4),
                                        .dweight = t1(F32, 4),
                                        .dy = t3(F32, 5, 3, 4),
                                        .x = t3(F32, 5, 3, 4),
                                        .weight = t1(F32, 4),
                                        .rstd = t2(F32, 5, 3)};

    (void)state;
    assert_ok(rk_head_norm_fwd(stream, &fwd));
    BAD(rk_head_norm_fwd, fwd, "head_norm_fwd: y is f32 [5, 3, 4], expected bf16 [5, 3, 4]",
        y = t3(F32, 5, 3, 4));
    BAD(rk_head_norm_fwd, fwd, "head_norm_fwd: rstd is f32 [3, 5], expected f32 [5, 3]",
        rstd = t2(F32, 3, 5));
    BAD(rk_head_norm_fwd, fwd, "head_norm_fwd: weight is bf16 [3], expected bf16 [4]", weight = t1(BF16, 3));
    BAD(rk_head_norm_fwd, fwd, "head_norm_fwd: eps=-1, expected finite and >= 0", eps = -1.0f);
    BAD(rk_head_norm_fwd, fwd, "head_norm_fwd: x has head_dim=0", x = t3(BF16, 5, 3, 0));
    assert_ok(rk_head_norm_bwd(stream, &bwd));
    BAD(rk_head_norm_bwd, bwd, "head_norm_bwd: dx is f32 [5, 3, 5], expected f32 [5, 3, 4]",
        dx = t3(F32, 5, 3, 5));
    BAD(rk_head_norm_bwd, bwd, "head_norm_bwd: x is f64 [5, 3, 4], expected f32 [5, 3, 4]",
        x = t3(F64, 5, 3, 4));
    BAD(rk_head_norm_bwd, bwd, "head_norm_bwd: dweight is f32 [3], expected f32 [4]", dweight = t1(F32, 3));
    BAD(rk_head_norm_bwd, bwd, "head_norm_bwd: weight is f32 [5], expected f32 [4]", weight = t1(F32, 5));
    BAD(rk_head_norm_bwd, bwd, "head_norm_bwd: rstd is f64 [5, 3], expected f32 [5, 3]",
        rstd = t2(F64, 5, 3));
    BAD(rk_head_norm_bwd, bwd, "head_norm_bwd: dx aliases x", dx.data = bwd.x.data);
}

static void test_project_bad_arguments_fail(void **state)
{
    struct rk_project_fwd_args fwd = {
        .scores = t2(F32, 5, 2), .x = t2(BF16, 5, 4), .weight = t2(BF16, 2, 4), .bias = t1(BF16, 2)};
    struct rk_project_bwd_args bwd = {.dx = t2(BF16, 5, 4),
                                      .dweight = t2(F32, 2, 4),
                                      .dscores = t2(F32, 5, 2),
                                      .x = t2(BF16, 5, 4),
                                      .weight = t2(BF16, 2, 4)};

    (void)state;
    assert_ok(rk_project_fwd(stream, &fwd));
    BAD(rk_project_fwd, fwd, "project_fwd: scores is bf16 [5, 2], expected f32 [5, 2]",
        scores = t2(BF16, 5, 2));
    BAD(rk_project_fwd, fwd, "project_fwd: weight is bf16 [2, 3], expected bf16 [2, 4]",
        weight = t2(BF16, 2, 3));
    BAD(rk_project_fwd, fwd, "project_fwd: weight has columns=0, expected >= 1", weight = t2(BF16, 0, 4));
    BAD(rk_project_fwd, fwd, "project_fwd: bias is f32 [2], expected bf16 [2]", bias = t1(F32, 2));
    BAD(rk_project_fwd, fwd, "project_fwd: x has hidden_size=0, expected >= 1", x = t2(BF16, 5, 0));
    assert_ok(rk_project_bwd(stream, &bwd));
    BAD(rk_project_bwd, bwd, "project_bwd: dx is f32 [5, 4], expected bf16 [5, 4]", dx = t2(F32, 5, 4));
    BAD(rk_project_bwd, bwd, "project_bwd: dscores is f32 [5, 3], expected f32 [5, 2]",
        dscores = t2(F32, 5, 3));
    BAD(rk_project_bwd, bwd, "project_bwd: dweight is f32 [4, 2], expected f32 [2, 4]",
        dweight = t2(F32, 4, 2));
    BAD(rk_project_bwd, bwd, "project_bwd: dweight has row_stride=5, expected contiguous rows of 4",
        dweight = rk_tensor_cols(t2(F32, 2, 5), 0, 4));
    BAD(rk_project_bwd, bwd, "project_bwd: weight is f32 [3, 4], expected bf16 [3, 4]",
        weight = t2(F32, 3, 4));
    BAD(rk_project_bwd, bwd, "project_bwd: dx aliases x", dx.data = bwd.x.data);
}

static void test_rope_bad_arguments_fail(void **state)
{
    struct rk_rope_args good = {
        .x = t3(F32, 3, 2, 8), .cos = t2(F32, 10, 4), .sin = t2(F32, 10, 4), .positions = t1(I32, 3)};

    (void)state;
    assert_ok(rk_rope(stream, &good));
    BAD(rk_rope, good, "rope: x has rank 2, expected 3", x = t2(F32, 3, 16));
    BAD(rk_rope, good, "rope: x has head_dim=7", x = t3(F32, 3, 2, 7));
    BAD(rk_rope, good, "rope: cos is bf16 [10, 4], expected f32 [10, 4]", cos = t2(BF16, 10, 4));
    BAD(rk_rope, good, "rope: sin is f32 [9, 4], expected f32 [10, 4]", sin = t2(F32, 9, 4));
    BAD(rk_rope, good, "rope: positions is i32 [2], expected i32 [3]", positions = t1(I32, 2));
}

static void test_swiglu_bad_arguments_fail(void **state)
{
    struct rk_swiglu_fwd_args fwd = {.y = t2(F32, 3, 4), .gate = t2(F32, 3, 4), .up = t2(F32, 3, 4)};
    struct rk_swiglu_bwd_args bwd = {.dgate = t2(F32, 3, 4),
                                     .dup = t2(F32, 3, 4),
                                     .dy = t2(F32, 3, 4),
                                     .gate = t2(F32, 3, 4),
                                     .up = t2(F32, 3, 4)};

    (void)state;
    assert_ok(rk_swiglu_fwd(stream, &fwd));
    BAD(rk_swiglu_fwd, fwd, "swiglu_fwd: up is f32 [3, 5], expected f32 [3, 4]", up = t2(F32, 3, 5));
    BAD(rk_swiglu_fwd, fwd, "swiglu_fwd: y is f64 [3, 4], expected f32 [3, 4]", y = t2(F64, 3, 4));
    BAD(rk_swiglu_fwd, fwd, "swiglu_fwd: y aliases up", y.data = fwd.up.data);
    BAD(rk_swiglu_fwd, fwd, "swiglu_fwd: probs is f32 [4], expected f32 [3]", probs = t1(F32, 4));
    assert_ok(rk_swiglu_bwd(stream, &bwd));
    BAD(rk_swiglu_bwd, bwd, "swiglu_bwd: dy is f32 [2, 4], expected f32 [3, 4]", dy = t2(F32, 2, 4));
    BAD(rk_swiglu_bwd, bwd, "swiglu_bwd: dup is f32 [4, 3], expected f32 [3, 4]", dup = t2(F32, 4, 3));
    BAD(rk_swiglu_bwd, bwd, "swiglu_bwd: dgate aliases dy", dgate.data = bwd.dy.data);
    BAD(rk_swiglu_bwd, bwd, "swiglu_bwd: dup aliases dgate", dup.data = bwd.dgate.data);
    BAD(rk_swiglu_bwd, bwd, "swiglu_bwd: probs is bf16 [3], expected f32 [3]", probs = t1(BF16, 3));
    BAD(rk_swiglu_bwd, bwd, "swiglu_bwd: dprobs is none, expected it where probs is given, and only there",
        probs = t1(F32, 3));
    BAD(rk_swiglu_bwd, bwd, "swiglu_bwd: y is f64 [3, 4], expected f32 [3, 4]", y = t2(F64, 3, 4));
    BAD(rk_swiglu_bwd, bwd, "swiglu_bwd: y aliases gate", y = bwd.gate);
    BAD(rk_swiglu_bwd, bwd, "swiglu_bwd: y aliases dup", y = bwd.dup);
    BAD(rk_swiglu_bwd, bwd, "swiglu_bwd: count is i32 [2], expected i32 [1]", count = t1(I32, 2));
}

static struct rk_attn_varlen_bwd_args good_attention(void)
{
    return (struct rk_attn_varlen_bwd_args){
        .fwd = {.out = t3(F32, 5, 4, 2),
                .lse = t2(F32, 4, 5),
                .q = t3(F32, 5, 4, 2),
                .k = t3(F32, 5, 2, 2),
                .v = t3(F32, 5, 2, 2),
                .cu_seqlens = bounds(5),
                .max_seqlen = 5,
                .scale = 1.0f},
        .dq = t3(F32, 5, 4, 2),
        .dk = t3(F32, 5, 2, 2),
        .dv = t3(F32, 5, 2, 2),
        .dout = t3(F32, 5, 4, 2),
    };
}

static void test_attn_varlen_bad_arguments_fail(void **state)
{
    struct rk_attn_varlen_bwd_args bwd = good_attention();
    struct rk_attn_varlen_args fwd = bwd.fwd;

    (void)state;
    assert_ok(rk_attn_varlen_fwd(stream, &fwd));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: k is f32 [4, 2, 2], expected f32 [5, 2, 2]",
        k = t3(F32, 4, 2, 2));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: v is f32 [5, 2, 3], expected f32 [5, 2, 2]",
        v = t3(F32, 5, 2, 3));
    BAD(rk_attn_varlen_fwd, fwd, "num_heads=3, expected a multiple of num_kv_heads=2", q = t3(F32, 5, 3, 2));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: out is bf16 [5, 4, 2]", out = t3(BF16, 5, 4, 2));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: lse is f32 [5, 4], expected f32 [4, 5]",
        lse = t2(F32, 5, 4));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: cu_seqlens is empty", cu_seqlens = t1(I32, 0));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: cu_seqlens is i64 [2], expected i32 [2]",
        cu_seqlens = t1(RK_DTYPE_I64, 2));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: max_seqlen=0, expected", max_seqlen = 0);
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: window=-1, expected >= 0", window = -1);
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: scale=inf, expected finite", scale = INFINITY);
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: out aliases v", out.data = fwd.v.data);
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: q has head_dim=0, expected >= 1", q = t3(F32, 5, 4, 0),
        bad_.k = t3(F32, 5, 2, 0));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: out has v_head_dim=0, expected >= 1",
        out = t3(F32, 5, 4, 0), bad_.v = t3(F32, 5, 2, 0));
    assert_ok(rk_attn_varlen_bwd(stream, &bwd));
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: lse has rank 0, expected", fwd.lse = none);
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: dq is f32 [5, 2, 2], expected f32 [5, 4, 2]",
        dq = t3(F32, 5, 2, 2));
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: dk is f32 [5, 4, 2], expected f32 [5, 2, 2]",
        dk = t3(F32, 5, 4, 2));
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: dv is f64 [5, 2, 2], expected f32 [5, 2, 2]",
        dv = t3(F64, 5, 2, 2));
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: dout is f32 [4, 4, 2]", dout = t3(F32, 4, 4, 2));
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: dk aliases k", dk.data = bwd.fwd.k.data);
}

/* Values and results have the same width, which differs from that of queries and keys. */
static void test_attn_varlen_bad_value_widths_fail(void **state)
{
    struct rk_attn_varlen_bwd_args bwd = good_attention();
    struct rk_attn_varlen_args fwd;

    (void)state;
    bwd.fwd.v = t3(F32, 5, 2, 3);
    bwd.dv = t3(F32, 5, 2, 3);
    bwd.fwd.out = t3(F32, 5, 4, 3);
    bwd.dout = t3(F32, 5, 4, 3);
    fwd = bwd.fwd;
    assert_ok(rk_attn_varlen_fwd(stream, &fwd));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: v is f32 [5, 2, 2], expected f32 [5, 2, 3]",
        v = t3(F32, 5, 2, 2));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: k is f32 [5, 2, 3], expected f32 [5, 2, 2]",
        k = t3(F32, 5, 2, 3));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: v is f32 [5, 2, 3], expected f32 [5, 2, 4]",
        out = t3(F32, 5, 4, 4));
    assert_ok(rk_attn_varlen_bwd(stream, &bwd));
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: dv is f32 [5, 2, 2], expected f32 [5, 2, 3]",
        dv = t3(F32, 5, 2, 2));
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: dout is f32 [5, 4, 2], expected f32 [5, 4, 3]",
        dout = t3(F32, 5, 4, 2));
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: dq is f32 [5, 4, 3], expected f32 [5, 4, 2]",
        dq = t3(F32, 5, 4, 3));
}

static void test_attn_varlen_bad_key_ranges_fail(void **state)
{
    struct rk_attn_varlen_bwd_args bwd = good_attention();
    struct rk_attn_varlen_args fwd;

    (void)state;
    bwd.fwd.k = t3(F32, 7, 2, 2);
    bwd.fwd.v = t3(F32, 7, 2, 2);
    bwd.fwd.k_begin = t1(I32, 1);
    bwd.fwd.k_lens = t1(I32, 1);
    bwd.dk = t3(F32, 7, 2, 2);
    bwd.dv = t3(F32, 7, 2, 2);
    fwd = bwd.fwd;
    assert_ok(rk_attn_varlen_fwd(stream, &fwd));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: k_begin has rank 0, expected", k_begin = none);
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: k_lens has rank 0, expected", k_lens = none);
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: k_begin is i32 [2], expected i32 [1]",
        k_begin = t1(I32, 2));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: k_lens is i64 [1], expected i32 [1]",
        k_lens = t1(RK_DTYPE_I64, 1));
    BAD(rk_attn_varlen_fwd, fwd, "attn_varlen_fwd: v is f32 [5, 2, 2], expected f32 [7, 2, 2]",
        v = t3(F32, 5, 2, 2));
    assert_ok(rk_attn_varlen_bwd(stream, &bwd));
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: dk is f32 [5, 2, 2], expected f32 [7, 2, 2]",
        dk = t3(F32, 5, 2, 2));
    BAD(rk_attn_varlen_bwd, bwd, "attn_varlen_bwd: dv is f32 [5, 2, 2], expected f32 [7, 2, 2]",
        dv = t3(F32, 5, 2, 2));
}

static void test_paged_bad_arguments_fail(void **state)
{
    struct rk_kv_write_args write = {.k_cache = t4(F32, 3, 2, 4, 8),
                                     .v_cache = t4(F32, 3, 2, 4, 8),
                                     .k = t3(F32, 5, 2, 8),
                                     .v = t3(F32, 5, 2, 8),
                                     .slot_mapping = t1(I32, 5)};
    struct rk_attn_paged_args paged = {.out = t3(F32, 0, 4, 8),
                                       .q = t3(F32, 0, 4, 8),
                                       .k_cache = write.k_cache,
                                       .v_cache = write.v_cache,
                                       .block_table = t2(I32, 2, 3),
                                       .cu_q = t1(I32, 3),
                                       .seq_lens = t1(I32, 2),
                                       .scale = 1.0f};

    (void)state;
    assert_ok(rk_kv_write(stream, &write));
    BAD(rk_kv_write, write, "kv_write: v_cache is f32 [2, 2, 4, 8]", v_cache = t4(F32, 2, 2, 4, 8));
    BAD(rk_kv_write, write, "kv_write: k_cache has block_size=0", k_cache = t4(F32, 3, 2, 0, 8));
    BAD(rk_kv_write, write, "kv_write: k is bf16 [5, 2, 8], expected f32 [5, 2, 8]", k = t3(BF16, 5, 2, 8));
    BAD(rk_kv_write, write, "kv_write: v is f32 [5, 1, 8], expected f32 [5, 2, 8]", v = t3(F32, 5, 1, 8));
    BAD(rk_kv_write, write, "kv_write: slot_mapping is i32 [4], expected i32 [5]", slot_mapping = t1(I32, 4));
    BAD(rk_kv_write, write, "kv_write: k_cache aliases v_cache", v_cache = write.k_cache);
    assert_ok(rk_attn_paged(stream, &paged));
    BAD(rk_attn_paged, paged, "attn_paged: k_cache is f32 [3, 2, 4, 8], expected f32 [3, 2, 4, 6]",
        q = t3(F32, 0, 4, 6));
    BAD(rk_attn_paged, paged, "attn_paged: num_heads=3, expected a multiple", q = t3(F32, 0, 3, 8));
    BAD(rk_attn_paged, paged, "attn_paged: out is f32 [1, 4, 8], expected f32 [0, 4, 8]",
        out = t3(F32, 1, 4, 8));
    BAD(rk_attn_paged, paged, "attn_paged: cu_q is i32 [2], expected i32 [3]", cu_q = t1(I32, 2));
    BAD(rk_attn_paged, paged, "attn_paged: block_table is i32 [3, 3], expected i32 [2, 3]",
        block_table = t2(I32, 3, 3));
    BAD(rk_attn_paged, paged, "attn_paged: seq_lens is f32 [2], expected i32 [2]", seq_lens = t1(F32, 2));
    BAD(rk_attn_paged, paged, "attn_paged: window=-5, expected >= 0", window = -5);
    BAD(rk_attn_paged, paged, "attn_paged: scale=nan, expected finite", scale = NAN);
}

/* Values with a different width, and a cache of one tensor. */
static void test_paged_bad_value_widths_fail(void **state)
{
    struct rk_kv_write_args write = {.k_cache = t4(F32, 3, 1, 4, 8),
                                     .v_cache = t4(F32, 3, 1, 4, 6),
                                     .k = t3(F32, 5, 1, 8),
                                     .v = t3(F32, 5, 1, 6),
                                     .slot_mapping = t1(I32, 5)};
    struct rk_attn_paged_args paged = {.out = t3(F32, 0, 4, 6),
                                       .q = t3(F32, 0, 4, 8),
                                       .k_cache = write.k_cache,
                                       .v_cache = write.v_cache,
                                       .block_table = t2(I32, 2, 3),
                                       .cu_q = t1(I32, 3),
                                       .seq_lens = t1(I32, 2),
                                       .scale = 1.0f};

    (void)state;
    assert_ok(rk_kv_write(stream, &write));
    BAD(rk_kv_write, write, "kv_write: v is f32 [5, 1, 8], expected f32 [5, 1, 6]", v = t3(F32, 5, 1, 8));
    BAD(rk_kv_write, write, "kv_write: v_cache is f32 [3, 2, 4, 6], expected f32 [3, 1, 4, 6]",
        v_cache = t4(F32, 3, 2, 4, 6));
    BAD(rk_kv_write, write, "kv_write: v is given without v_cache, expected none", v_cache = none);
    BAD(rk_kv_write, write, "kv_write: v has rank 0, expected", v = none);
    assert_ok(rk_attn_paged(stream, &paged));
    BAD(rk_attn_paged, paged, "attn_paged: v_cache is f32 [3, 1, 4, 6], expected f32 [3, 1, 4, 8]",
        out = t3(F32, 0, 4, 8));
    BAD(rk_attn_paged, paged, "attn_paged: out has v_head_dim=0, expected >= 1", out = t3(F32, 0, 4, 0),
        bad_.v_cache = t4(F32, 3, 1, 4, 0));
    paged.v_cache = write.v_cache = write.v = none;
    assert_ok(rk_kv_write(stream, &write));
    assert_ok(rk_attn_paged(stream, &paged));
    BAD(rk_attn_paged, paged, "attn_paged: out has v_head_dim=9, expected at most head_dim=8 of k_cache",
        out = t3(F32, 0, 4, 9));
}

static void test_decode_bad_arguments_fail(void **state)
{
    struct rk_rope_kv_write_args rope = {.q = t3(F32, 5, 4, 8),
                                         .cos = t2(F32, 9, 4),
                                         .sin = t2(F32, 9, 4),
                                         .positions = t1(I32, 5),
                                         .kv = {.k_cache = t4(F32, 3, 2, 4, 8),
                                                .v_cache = t4(F32, 3, 2, 4, 8),
                                                .k = t3(F32, 5, 2, 8),
                                                .v = t3(F32, 5, 2, 8),
                                                .slot_mapping = t1(I32, 5)}};
    struct rk_next_tokens_args next = {.tokens = t1(I32, 5), .sampled = t1(I32, 3), .source = t1(I32, 5)};

    (void)state;
    assert_ok(rk_rope_kv_write(stream, &rope));
    BAD(rk_rope_kv_write, rope, "rope_kv_write: cos is f32 [9, 3], expected f32 [9, 4]", cos = t2(F32, 9, 3));
    BAD(rk_rope_kv_write, rope, "rope_kv_write: positions is i32 [4], expected i32 [5]",
        positions = t1(I32, 4));
    BAD(rk_rope_kv_write, rope, "rope_kv_write: v is f32 [5, 1, 8], expected f32 [5, 2, 8]",
        kv.v = t3(F32, 5, 1, 8));
    BAD(rk_rope_kv_write, rope, "rope_kv_write: v is f32 [5, 2, 8], expected f32 [4, 2, 8]",
        kv.k = t3(F32, 4, 2, 8));
    BAD(rk_rope_kv_write, rope, "rope_kv_write: k is f32 [5, 2, 8], expected bf16 [5, 2, 8]",
        q = t3(BF16, 5, 4, 8));
    assert_ok(rk_next_tokens(stream, &next));
    BAD(rk_next_tokens, next, "next_tokens: source is i32 [4], expected i32 [5]", source = t1(I32, 4));
    BAD(rk_next_tokens, next, "next_tokens: sampled is f32 [3], expected i32 [3]", sampled = t1(F32, 3));
    BAD(rk_next_tokens, next, "next_tokens: tokens aliases sampled", sampled.data = next.tokens.data);
}

static void test_vocab_stats_bad_arguments_fail(void **state)
{
    struct rk_vocab_stats_args good = {.stats = t2(F64, 3, 4),
                                       .logits = t2(BF16, 3, 9),
                                       .labels = t1(I32, 3),
                                       .num_valid = 9,
                                       .inv_temperature = 1.0f};
    struct rk_vocab_stats_merge_args merge = {
        .stats = t2(F64, 3, 4), .parts = t3(F64, 2, 3, 4), .log_probs = t1(F32, 3), .entropy = t1(F32, 3)};
    struct rk_vocab_stats_bwd_args bwd = {.dlogits = t2(BF16, 3, 9),
                                          .logits = good.logits,
                                          .stats = merge.stats,
                                          .dlog_probs = t1(F32, 3),
                                          .dentropy = t1(F32, 3),
                                          .labels = good.labels,
                                          .num_valid = 9,
                                          .inv_temperature = 1.0f};

    (void)state;
    assert_ok(rk_vocab_stats(stream, &good));
    BAD(rk_vocab_stats, good, "vocab_stats: stats is f32 [3, 4], expected f64 [3, 4]", stats = t2(F32, 3, 4));
    BAD(rk_vocab_stats, good, "vocab_stats: labels is i32 [2], expected i32 [3]", labels = t1(I32, 2));
    BAD(rk_vocab_stats, good, "vocab_stats: num_valid=10, expected 0 to 9", num_valid = 10);
    BAD(rk_vocab_stats, good, "vocab_stats: num_valid=-1, expected 0 to 9", num_valid = -1);
    BAD(rk_vocab_stats, good, "vocab_stats: vocab_begin=-1, expected >= 0", vocab_begin = -1);
    BAD(rk_vocab_stats, good, "vocab_stats: inv_temperature=0, expected", inv_temperature = 0.0f);
    BAD(rk_vocab_stats, good, "vocab_stats: inv_temperature=inf, expected", inv_temperature = INFINITY);
    BAD(rk_vocab_stats, good, "vocab_stats: squares is f32 [3], expected f64 [3]", squares = t1(F32, 3));
    assert_ok(rk_vocab_stats_merge(stream, &merge));
    BAD(rk_vocab_stats_merge, merge, "vocab_stats_merge: parts is f64 [2, 3, 3]", parts = t3(F64, 2, 3, 3));
    BAD(rk_vocab_stats_merge, merge, "vocab_stats_merge: parts has num_parts=0", parts = t3(F64, 0, 3, 4));
    BAD(rk_vocab_stats_merge, merge, "vocab_stats_merge: log_probs is bf16 [3]", log_probs = t1(BF16, 3));
    BAD(rk_vocab_stats_merge, merge, "vocab_stats_merge: entropy is f64 [3], expected f32",
        entropy = t1(F64, 3));
    BAD(rk_vocab_stats_merge, merge, "vocab_stats_merge: stats is f64 [2, 4]", stats = t2(F64, 2, 4));
    BAD(rk_vocab_stats_merge, merge, "vocab_stats_merge: square_parts has rank 0",
        sum_pi_squared = t1(F32, 3));
    merge.square_parts = t2(F64, 2, 3);
    BAD(rk_vocab_stats_merge, merge, "vocab_stats_merge: sum_pi_squared is f64 [3], expected f32",
        sum_pi_squared = t1(F64, 3));
    BAD(rk_vocab_stats_merge, merge, "vocab_stats_merge: squares is f64 [2], expected f64 [3]",
        squares = t1(F64, 2));
    assert_ok(rk_vocab_stats_bwd(stream, &bwd));
    BAD(rk_vocab_stats_bwd, bwd, "vocab_stats_bwd: dlogits is f32 [3, 9], expected bf16",
        dlogits = t2(F32, 3, 9));
    BAD(rk_vocab_stats_bwd, bwd, "vocab_stats_bwd: stats is f64 [4, 3], expected f64 [3, 4]",
        stats = t2(F64, 4, 3));
    BAD(rk_vocab_stats_bwd, bwd, "vocab_stats_bwd: dlog_probs is bf16 [3], expected f32",
        dlog_probs = t1(BF16, 3));
    BAD(rk_vocab_stats_bwd, bwd, "vocab_stats_bwd: dentropy is f32 [4], expected f32 [3]",
        dentropy = t1(F32, 4));
    BAD(rk_vocab_stats_bwd, bwd, "vocab_stats_bwd: squares has rank 0", dsum_pi_squared = t1(F32, 3));
    bwd.squares = t1(F64, 3);
    BAD(rk_vocab_stats_bwd, bwd, "vocab_stats_bwd: dsum_pi_squared is f32 [4], expected f32 [3]",
        dsum_pi_squared = t1(F32, 4));
    BAD(rk_vocab_stats_bwd, bwd, "vocab_stats_bwd: num_valid=10, expected 0 to 9", num_valid = 10);
}

static void test_vocab_ids_bad_arguments_fail(void **state)
{
    struct rk_vocab_gather_args gather = {.z = t2(F64, 3, 2),
                                          .ids = t2(I32, 3, 2),
                                          .logits = t2(BF16, 3, 9),
                                          .stats = t2(F64, 3, 4),
                                          .num_valid = 9,
                                          .inv_temperature = 1.0f};
    struct rk_vocab_gather_merge_args merge = {
        .log_probs = t2(F32, 3, 2), .parts = t3(F64, 2, 3, 2), .ids = gather.ids, .stats = gather.stats};
    struct rk_top_k_args top = {
        .values = t2(F32, 3, 2), .ids = t2(I32, 3, 2), .logits = gather.logits, .num_valid = 9};
    struct rk_vocab_stats_bwd_args bwd = {.dlogits = t2(BF16, 3, 9),
                                          .logits = gather.logits,
                                          .stats = gather.stats,
                                          .dlog_probs = t1(F32, 3),
                                          .gathered = {.ids = gather.ids,
                                                       .log_probs = merge.log_probs,
                                                       .dlog_probs = t2(F32, 3, 2),
                                                       .dsum = t1(F32, 3)},
                                          .labels = t1(I32, 3),
                                          .num_valid = 9,
                                          .inv_temperature = 1.0f};

    (void)state;
    assert_ok(rk_vocab_gather(stream, &gather));
    BAD(rk_vocab_gather, gather, "vocab_gather: z is f32 [3, 2], expected f64 [3, 2]", z = t2(F32, 3, 2));
    BAD(rk_vocab_gather, gather, "vocab_gather: ids has rank 2 and 1025 a row, expected rank 2 and 1 to 1024",
        ids = t2(I32, 3, 1025));
    BAD(rk_vocab_gather, gather, "vocab_gather: ids is i32 [2, 2], expected i32 [3, 2]", ids = t2(I32, 2, 2));
    BAD(rk_vocab_gather, gather, "vocab_gather: stats is f64 [3, 3]", stats = t2(F64, 3, 3));
    BAD(rk_vocab_gather, gather, "vocab_gather: num_valid=10, expected 0 to 9", num_valid = 10);
    assert_ok(rk_vocab_gather_merge(stream, &merge));
    BAD(rk_vocab_gather_merge, merge, "vocab_gather_merge: parts is f64 [2, 2, 2], expected f64 [2, 3, 2]",
        parts = t3(F64, 2, 2, 2));
    BAD(rk_vocab_gather_merge, merge, "vocab_gather_merge: parts has num_parts=0", parts = t3(F64, 0, 3, 2));
    BAD(rk_vocab_gather_merge, merge, "vocab_gather_merge: log_probs is bf16 [3, 2], expected f32",
        log_probs = t2(BF16, 3, 2));
    assert_ok(rk_top_k(stream, &top));
    BAD(rk_top_k, top, "top_k: values is f64 [3, 2], expected f32 [3, 2]", values = t2(F64, 3, 2));
    BAD(rk_top_k, top, "top_k: ids has rank 2 and 0 a row", ids = t2(I32, 3, 0));
    BAD(rk_top_k, top, "top_k: source_ids is i32 [3, 2], expected i32 [3, 9]", source_ids = t2(I32, 3, 2));
    BAD(rk_top_k, top, "top_k: num_valid=10, expected 0 to 9", num_valid = 10);
    assert_ok(rk_vocab_stats_bwd(stream, &bwd));
    BAD(rk_vocab_stats_bwd, bwd, "vocab_stats_bwd: gathered.dsum is f32 [2], expected f32 [3]",
        gathered.dsum = t1(F32, 2));
    BAD(rk_vocab_stats_bwd, bwd, "vocab_stats_bwd: gathered.log_probs is f64 [3, 2], expected f32 [3, 2]",
        gathered.log_probs = t2(F64, 3, 2));
    BAD(rk_vocab_stats_bwd, bwd, "vocab_stats_bwd: gathered.dlog_probs is f32 [3, 3], expected f32 [3, 2]",
        gathered.dlog_probs = t2(F32, 3, 3));
}

static void test_sample_bad_arguments_fail(void **state)
{
    static const struct rk_sample_params params[2] = {{.top_p = 1.0f}, {.top_p = 1.0f}};
    struct rk_sample_args good = {.tokens = t1(I32, 2),
                                  .log_probs = t1(F32, 2),
                                  .logits = t2(F32, 2, 9),
                                  .vocab_size = 9,
                                  .params = params};

    (void)state;
    assert_ok(rk_sample(stream, &good));
    BAD(rk_sample, good, "sample: tokens is f32 [2], expected i32 [2]", tokens = t1(F32, 2));
    BAD(rk_sample, good, "sample: log_probs is f64 [2], expected f32 [2]", log_probs = t1(F64, 2));
    BAD(rk_sample, good, "sample: logits is i32, expected a float type", logits = t2(I32, 2, 9));
    BAD(rk_sample, good, "sample: vocab_size=10, expected 1 to 9", vocab_size = 10);
    BAD(rk_sample, good, "sample: vocab_size=0, expected 1 to 9", vocab_size = 0);
    BAD(rk_sample, good, "sample: params is none, expected 2 rows", params = NULL);
}

static void test_rows_bad_arguments_fail(void **state)
{
    struct rk_rows_args gather = {.out = t2(F32, 2, 3), .x = t2(F32, 5, 3), .index = t1(I32, 2)};
    struct rk_rows_args scatter = {.out = gather.x, .x = gather.out, .index = bounds(1)};

    (void)state;
    assert_ok(rk_gather_rows(stream, &gather));
    BAD(rk_gather_rows, gather, "gather_rows: out is f32 [3, 3], expected f32 [2, 3]", out = t2(F32, 3, 3));
    BAD(rk_gather_rows, gather, "gather_rows: out is bf16 [2, 3], expected f32 [2, 3]", out = t2(BF16, 2, 3));
    BAD(rk_gather_rows, gather, "gather_rows: x is f32 [15], expected f32 [15, 0]", x = t1(F32, 15));
    BAD(rk_gather_rows, gather, "gather_rows: index is i64 [2], expected i32 [2]",
        index = t1(RK_DTYPE_I64, 2));
    BAD(rk_gather_rows, gather, "gather_rows: out aliases x", out.data = gather.x.data);
    assert_ok(rk_scatter_rows(stream, &scatter));
    BAD(rk_scatter_rows, scatter, "scatter_rows: x is f32 [3, 3], expected f32 [2, 3]", x = t2(F32, 3, 3));
    BAD(rk_scatter_rows, scatter, "scatter_rows: out is f32 [5, 4], expected f32 [5, 3]",
        out = t2(F32, 5, 4));
}

static void test_flat_operators_bad_arguments_fail(void **state)
{
    struct rk_axpby_args axpby = {.y = t2(F32, 3, 4), .x = t1(BF16, 12), .alpha = 1.0f};
    struct rk_sum_squares_args squares = {.out = t1(F64, 2), .x = t2(BF16, 3, 4)};
    struct rk_random_normal_args normal = {.out = t2(BF16, 3, 4), .deviation = 1};
    struct rk_copy_2d_args copy = {.out = t2(F32, 3, 4), .x = t2(BF16, 3, 4)};
    struct rk_fingerprint_args fingerprint = {
        .out = t1(RK_DTYPE_I64, 1), .x = t2(BF16, 3, 4), .dtype = RK_DTYPE_BF16};

    (void)state;
    assert_ok(rk_axpby(stream, &axpby));
    BAD(rk_axpby, axpby, "axpby: x has 11 elements, expected 12 like y", x = t1(BF16, 11));
    BAD(rk_axpby, axpby, "axpby: x is i32, expected a float type", x = t1(I32, 12));
    BAD(rk_axpby, axpby, "axpby: y is i32, expected a float type", y = t1(I32, 12));
    BAD(rk_axpby, axpby, "axpby: x has row_stride=5, expected contiguous rows of 4",
        x = rk_tensor_cols(t2(F32, 3, 5), 0, 4));
    BAD(rk_axpby, axpby, "axpby: y aliases x", y.data = axpby.x.data);
    assert_ok(rk_sum_squares(stream, &squares));
    BAD(rk_sum_squares, squares, "sum_squares: out is f32 [2], expected f64 [2]", out = t1(F32, 2));
    BAD(rk_sum_squares, squares, "sum_squares: out is f64 [1], expected f64 [2]", out = t1(F64, 1));
    BAD(rk_sum_squares, squares, "sum_squares: x is u8, expected a float type", x = t1(RK_DTYPE_U8, 4));
    BAD(rk_sum_squares, squares, "sum_squares: x has row_stride=5", x = rk_tensor_cols(t2(F32, 3, 5), 0, 4));
    assert_ok(rk_random_normal(stream, &normal));
    BAD(rk_random_normal, normal, "random_normal: out has rank 1, expected 2", out = t1(F32, 12));
    BAD(rk_random_normal, normal, "random_normal: out is i32, expected a float type",
        out = t2(RK_DTYPE_I32, 3, 4));
    BAD(rk_random_normal, normal, "random_normal: deviation=inf, expected finite", deviation = INFINITY);
    assert_ok(rk_copy_2d(stream, &copy));
    BAD(rk_copy_2d, copy, "copy_2d: out is f32 [3, 5], expected f32 [3, 4]", out = t2(F32, 3, 5));
    BAD(rk_copy_2d, copy, "copy_2d: x is i32, expected a float type", x = t2(I32, 3, 4));
    BAD(rk_copy_2d, copy, "copy_2d: out aliases x", out.data = copy.x.data);
    assert_ok(rk_fingerprint(stream, &fingerprint));
    BAD(rk_fingerprint, fingerprint, "fingerprint: out is i64 [2], expected i64 [1]",
        out = t1(RK_DTYPE_I64, 2));
    BAD(rk_fingerprint, fingerprint, "fingerprint: x has rank 1, expected 2", x = t1(BF16, 12));
    BAD(rk_fingerprint, fingerprint, "fingerprint: dtype is i32, expected a float type",
        dtype = RK_DTYPE_I32);
}

static void test_adamw_bad_arguments_fail(void **state)
{
    struct rk_adamw_args good = {.param = t1(BF16, 6),
                                 .master = t1(F32, 6),
                                 .m = t1(F32, 6),
                                 .v = t1(F32, 6),
                                 .grad = t1(F32, 6),
                                 .lr = 0.1,
                                 .eps = 1e-8,
                                 .correction1 = 1.0,
                                 .correction2 = 1.0,
                                 .grad_scale = 1.0};

    (void)state;
    assert_ok(rk_adamw(stream, &good));
    BAD(rk_adamw, good, "adamw: param has rank 2, expected 1", param = t2(BF16, 2, 3));
    BAD(rk_adamw, good, "adamw: master is bf16 [6], expected f32 [6]", master = t1(BF16, 6));
    BAD(rk_adamw, good, "adamw: m is f32 [5], expected f32 [6]", m = t1(F32, 5));
    BAD(rk_adamw, good, "adamw: v is f64 [6], expected f32 [6]", v = t1(F64, 6));
    BAD(rk_adamw, good, "adamw: grad is bf16 [6], expected f32 [6]", grad = t1(BF16, 6));
    BAD(rk_adamw, good, "adamw: lr=-1, expected 0 to", lr = -1.0);
    BAD(rk_adamw, good, "adamw: lr=inf, expected 0 to", lr = INFINITY);
    BAD(rk_adamw, good, "adamw: beta1=1.5, expected 0 to 1", beta1 = 1.5);
    BAD(rk_adamw, good, "adamw: beta2=nan, expected 0 to 1", beta2 = NAN);
    BAD(rk_adamw, good, "adamw: correction1=0, correction2=1, expected > 0", correction1 = 0.0);
    BAD(rk_adamw, good, "adamw: correction1=1, correction2=0, expected > 0", correction2 = 0.0);
    BAD(rk_adamw, good, "adamw: grad_scale=nan, expected finite", grad_scale = NAN);
}

/* Goal: a product without an inner dimension, where A and B have no memory, is beta * C + bias. */
static void test_gemm_no_inner_dimension_scales_c(void **state)
{
    float c[2] = {3.0f, 5.0f}, bias[2] = {1.0f, 2.0f};

    (void)state;
    for (int strict = 0; strict < 2; strict++) {
        struct rk_gemm_args args = {.c = rk_tensor_2d(c, F32, 1, 2),
                                    .a = rk_tensor_2d(NULL, F32, 1, 0),
                                    .b = rk_tensor_2d(NULL, F32, 0, 2),
                                    .bias = rk_tensor_1d(bias, F32, 2),
                                    .strict = strict,
                                    .alpha = 1.0f,
                                    .beta = 2.0f};

        assert_ok(rk_gemm(stream, &args));
    }
    assert_true(c[0] == 15.0f); /* 2 (2 * 3 + 1) + 1 */
    assert_true(c[1] == 26.0f); /* 2 (2 * 5 + 2) + 2 */
}

/* Goal: empty calls are legal, also with tensors without memory, and leave accumulators unchanged. */
static void test_operators_empty_call_does_nothing(void **state)
{
    rk_tensor_t empty_2d = rk_tensor_2d(NULL, F32, 0, 4), no_ints = rk_tensor_1d(NULL, I32, 0);
    struct rk_attn_varlen_args attention = {.out = rk_tensor_3d(NULL, F32, 0, 2, 2),
                                            .q = rk_tensor_3d(NULL, F32, 0, 2, 2),
                                            .k = rk_tensor_3d(NULL, F32, 0, 1, 2),
                                            .v = rk_tensor_3d(NULL, F32, 0, 1, 2),
                                            .cu_seqlens = bounds(0)};

    (void)state;
    assert_ok(rk_gemm(stream, &(struct rk_gemm_args){.c = empty_2d, .a = empty_2d, .b = t2(F32, 4, 4)}));
    assert_ok(rk_embed_fwd(
        stream, &(struct rk_embed_fwd_args){.out = empty_2d, .table = t2(F32, 3, 4), .tokens = no_ints}));
    assert_ok(rk_rmsnorm_fwd(
        stream, &(struct rk_rmsnorm_fwd_args){.y = empty_2d, .x = empty_2d, .weight = t1(F32, 4)}));
    assert_ok(rk_attn_varlen_fwd(stream, &attention));
    assert_ok(rk_sample(stream, &(struct rk_sample_args){.tokens = no_ints,
                                                         .log_probs = rk_tensor_1d(NULL, F32, 0),
                                                         .logits = empty_2d,
                                                         .vocab_size = 4}));
}

#define checks_test(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        checks_test(test_gemm_bad_arguments_fail),
        checks_test(test_bias_bwd_bad_arguments_fail),
        checks_test(test_embed_bad_arguments_fail),
        checks_test(test_rmsnorm_fwd_bad_arguments_fail),
        checks_test(test_rmsnorm_bwd_bad_arguments_fail),
        checks_test(test_head_norm_bad_arguments_fail),
        checks_test(test_project_bad_arguments_fail),
        checks_test(test_rope_bad_arguments_fail),
        checks_test(test_swiglu_bad_arguments_fail),
        checks_test(test_attn_varlen_bad_arguments_fail),
        checks_test(test_attn_varlen_bad_key_ranges_fail),
        checks_test(test_attn_varlen_bad_value_widths_fail),
        checks_test(test_paged_bad_arguments_fail),
        checks_test(test_paged_bad_value_widths_fail),
        checks_test(test_decode_bad_arguments_fail),
        checks_test(test_vocab_stats_bad_arguments_fail),
        checks_test(test_vocab_ids_bad_arguments_fail),
        checks_test(test_sample_bad_arguments_fail),
        checks_test(test_rows_bad_arguments_fail),
        checks_test(test_flat_operators_bad_arguments_fail),
        checks_test(test_adamw_bad_arguments_fail),
        checks_test(test_operators_empty_call_does_nothing),
        checks_test(test_gemm_no_inner_dimension_scales_c),
    };

    return cmocka_run_group_tests_name("unit/kernels/checks", tests, NULL, NULL);
}
