/* The table of benchmarks. Names must not change: results of different days are compared by name. Operator
 * benchmarks have the shapes of Qwen2.5 1.5B (hidden 1536, intermediate 8960) and 7B (3584, 18944); every row
 * also has a shape for --tiny. */
#include "bench/bench_rpc.h"
#include "bench/models.h"
#include "bench/op_bench.h"

#define OP(a_group, a_name, a_unit, a_op, ...)                                                      \
    {                                                                                               \
        .group = (a_group), .name = (a_name), .unit = (a_unit), .run = bench_run_op, .op = &(a_op), \
        __VA_ARGS__                                                                                 \
    }
#define DIMS(...) .dims = {__VA_ARGS__}
#define TINY(...) .tiny = {__VA_ARGS__}
#define STRICT    .is_strict = true

/* A weight of N x K in training: Y = X W^T, dX, dW. */
#define TRAIN_GEMMS(n, k)                                                                                   \
    OP("gemm", "gemm_" #n "x" #k "_m8192", BENCH_TFLOPS, bench_op_gemm, DIMS(8192, n, k), TINY(8, 16, 32)), \
        OP("gemm", "gemm_strict_" #n "x" #k "_m8192", BENCH_TFLOPS, bench_op_gemm, DIMS(8192, n, k),        \
           TINY(8, 16, 32), STRICT),                                                                        \
        OP("gemm", "gemm_dx_" #n "x" #k "_m8192", BENCH_TFLOPS, bench_op_gemm_dx, DIMS(8192, n, k),         \
           TINY(8, 16, 32)),                                                                                \
        OP("gemm", "gemm_dw_" #n "x" #k "_m8192", BENCH_TFLOPS, bench_op_gemm_dw, DIMS(8192, n, k),         \
           TINY(8, 16, 32))
/* GEMMs in decoding, which is bound by the bytes of the weight. */
#define DECODE_GEMMS(n, k)                                                                              \
    OP("gemm", "gemm_" #n "x" #k "_m64", BENCH_GBYTES, bench_op_gemm, DIMS(64, n, k), TINY(4, 16, 32)), \
        OP("gemm", "gemm_strict_" #n "x" #k "_m64", BENCH_GBYTES, bench_op_gemm, DIMS(64, n, k),        \
           TINY(4, 16, 32), STRICT)
/* 128 experts with 512 tokens each (4 in decoding), as in Qwen3-30B-A3B with 8192 tokens (64). */
#define EXPERTS(a_name, a_op, n, k) \
    OP("gemm", a_name "_" #n "x" #k "_m512", BENCH_TFLOPS, a_op, DIMS(128, 512, n, k), TINY(3, 8, 16, 32))
#define TRAIN_EXPERTS(n, k)                                         \
    EXPERTS("grouped_gemm", bench_op_grouped_gemm, n, k),           \
        EXPERTS("grouped_gemm_dx", bench_op_grouped_gemm_dx, n, k), \
        EXPERTS("grouped_gemm_wgrad", bench_op_grouped_gemm_wgrad, n, k)
/* ... with unequal numbers of tokens; gradients in bf16, or added to others. */
#define MORE_EXPERTS(n, k)                                                                    \
    EXPERTS("grouped_gemm_lognormal", bench_op_grouped_gemm_lognormal, n, k),                 \
        EXPERTS("grouped_gemm_dx_lognormal", bench_op_grouped_gemm_dx_lognormal, n, k),       \
        EXPERTS("grouped_gemm_wgrad_lognormal", bench_op_grouped_gemm_wgrad_lognormal, n, k), \
        EXPERTS("grouped_gemm_wgrad_bf16", bench_op_grouped_gemm_wgrad_bf16, n, k),           \
        EXPERTS("grouped_gemm_wgrad_add", bench_op_grouped_gemm_wgrad_add, n, k)
#define DECODE_EXPERTS(n, k)                                                                             \
    OP("gemm", "grouped_gemm_" #n "x" #k "_m4", BENCH_GBYTES, bench_op_grouped_gemm, DIMS(128, 4, n, k), \
       TINY(3, 2, 16, 32))
#define ROWS(a_name, a_op, cols) \
    OP("elementwise", a_name "_" #cols, BENCH_GBYTES, a_op, DIMS(8192, cols), TINY(8, 64))
/* Value head, or classification head. */
#define PROJECT(a_name, a_op, cols, labels)                                                          \
    OP("elementwise", a_name "_" #cols "_to_" #labels, BENCH_GBYTES, a_op, DIMS(8192, cols, labels), \
       TINY(8, 64, labels))

#define MODEL(a_group, a_name, a_unit, a_run, a_model, ...)                                          \
    {                                                                                                \
        .group = (a_group), .name = (a_name), .unit = (a_unit), .run = (a_run), .model = &(a_model), \
        __VA_ARGS__                                                                                  \
    }
/* 8192 tokens, as in the PyTorch baseline. */
#define BATCH        DIMS(4, 2048), TINY(2, 12)
#define DECODE(seqs) DIMS(seqs, 1024, 128), TINY(3, 64, 4)
/* "reshard" is the all-gather of updated parameters over dp: actor and rollout with equal layouts share a
 * buffer, so nothing else is moved between them. */
#define COMM(a_group, a_name, a_unit, bytes, kind)                                                           \
    {                                                                                                        \
        .group = (a_group), .name = (a_name), .unit = (a_unit), .run = bench_run_collective, .num_ranks = 2, \
        DIMS(bytes, kind), TINY(1024, kind)                                                                  \
    }

/* Several ranks: their number is the product of the sizes. */
#define OVER(...) .layout = {__VA_ARGS__}
#define TO(...)   .to = {__VA_ARGS__}
#define ON(ranks) .num_ranks = (ranks)
#define STEP(a_name, ...) \
    MODEL("train", a_name, BENCH_TOKENS, bench_run_layout_step, bench_model_7b, __VA_ARGS__)
/* A step of 65,536 tokens: micro-batches of 8192 tokens, or of 4096 with pipeline stages. The last stage has
 * the head, which takes as long as two layers. */
#define WHOLE_STEPS(count) DIMS(4, 2048, count), TINY(2, 12, 2)
#define TWO_STAGES         DIMS(1, 4096, 16, 15, 13), TINY(1, 12, 4, 5, 3)
#define FOUR_STAGES        DIMS(1, 4096, 16, 7, 5), TINY(1, 12, 5, 2, 2)
#define EVEN_CHUNKS        DIMS(1, 4096, 8), TINY(1, 12, 8)
#define SP(a_name, tp_size)                                                                               \
    MODEL("train", a_name, BENCH_TIMES, bench_run_sequence_parallel, bench_model_7b, OVER(.tp = tp_size), \
          ON(tp_size), DIMS(4, 2048, 2), TINY(4, 128, 1))
#define CP(a_name, cp_size)                                                                                \
    MODEL("train", a_name, BENCH_TIMES, bench_run_context_parallel, bench_model_1_5b, OVER(.cp = cp_size), \
          ON(cp_size), DIMS(1, 131072, 1), TINY(1, 64, 1))
/* Experts divided over the ranks of dp: forward and backward. */
#define EP(a_name, a_model, size)                                                                         \
    MODEL("train", a_name, BENCH_TOKENS, bench_run_layout_fwd_bwd, a_model, OVER(.dp = size, .ep = size), \
          ON(size), DIMS(4, 2048, 1), TINY(2, 12, 1))
#define PP(a_name, pp_size, ...)                                                                  \
    MODEL("train", a_name, BENCH_TOKENS, bench_run_pipeline, bench_model_7b, OVER(.pp = pp_size), \
          ON(pp_size), __VA_ARGS__)
#define VPP(a_name, pp_size)                                                    \
    MODEL("train", a_name, BENCH_FASTER, bench_run_interleaved, bench_model_8b, \
          OVER(.pp = pp_size, .vpp = 2), ON(pp_size), EVEN_CHUNKS)
#define UPDATE(a_name, ranks, ...) \
    MODEL("reshard", a_name, BENCH_SECONDS, bench_run_update_weights, bench_model_7b, ON(ranks), __VA_ARGS__)

#define CKPT(a_name, what) \
    MODEL("ckpt", a_name, BENCH_GBYTES, bench_run_checkpoint, bench_model_1_5b, DIMS(what), TINY(what))

#define RPC(a_name, a_unit, a_run, transport, daemons, calls, bytes)                           \
    {                                                                                          \
        .group = "rpc", .name = (a_name), .unit = (a_unit), .run = (a_run),                    \
        DIMS(transport, daemons, calls, bytes), TINY(transport, RK_MIN(daemons, 2), 10, 16384) \
    }
#define RPC_STATUS(a_name, transport) RPC(a_name, BENCH_MICROS, bench_run_rpc_status, transport, 1, 2000, 0)
#define RPC_STREAM(a_name, transport) \
    RPC(a_name, BENCH_GBYTES, bench_run_rpc_stream, transport, 1, 0, 1 << 28)

const struct bench_case bench_cases[] = {
    OP("gemm", "gemm_8192", BENCH_TFLOPS, bench_op_gemm, DIMS(8192, 8192, 8192), TINY(32, 32, 32)),
    TRAIN_GEMMS(2048, 1536),
    TRAIN_GEMMS(1536, 1536),
    TRAIN_GEMMS(17920, 1536),
    TRAIN_GEMMS(1536, 8960),
    TRAIN_GEMMS(4608, 3584),
    TRAIN_GEMMS(3584, 3584),
    TRAIN_GEMMS(37888, 3584),
    TRAIN_GEMMS(3584, 18944),
    TRAIN_EXPERTS(1536, 2048),
    TRAIN_EXPERTS(2048, 768),
    MORE_EXPERTS(1536, 2048),
    MORE_EXPERTS(2048, 768),
    DECODE_EXPERTS(1536, 2048),
    DECODE_EXPERTS(2048, 768),
    DECODE_GEMMS(2048, 1536),
    DECODE_GEMMS(1536, 1536),
    DECODE_GEMMS(17920, 1536),
    DECODE_GEMMS(1536, 8960),
    DECODE_GEMMS(4608, 3584),
    DECODE_GEMMS(3584, 3584),
    DECODE_GEMMS(37888, 3584),
    DECODE_GEMMS(3584, 18944),
    DECODE_GEMMS(151936, 1536),

    OP("attention", "attn_fwd_hd128", BENCH_TFLOPS, bench_op_attn_fwd, DIMS(2, 4096, 28, 4, 128),
       TINY(2, 24, 4, 2, 16)),
    OP("attention", "attn_bwd_hd128", BENCH_TFLOPS, bench_op_attn_bwd, DIMS(2, 4096, 28, 4, 128),
       TINY(2, 24, 4, 2, 16)),
    OP("attention", "attn_fwd_hd128_32k", BENCH_TFLOPS, bench_op_attn_fwd, DIMS(1, 32768, 28, 4, 128),
       TINY(1, 48, 4, 2, 16)),
    OP("attention", "attn_bwd_hd128_32k", BENCH_TFLOPS, bench_op_attn_bwd, DIMS(1, 32768, 28, 4, 128),
       TINY(1, 48, 4, 2, 16)),
    OP("attention", "attn_fwd_1.5b_2048", BENCH_TFLOPS, bench_op_attn_fwd, DIMS(4, 2048, 12, 2, 128),
       TINY(2, 24, 4, 2, 16)),
    OP("attention", "attn_bwd_1.5b_2048", BENCH_TFLOPS, bench_op_attn_bwd, DIMS(4, 2048, 12, 2, 128),
       TINY(2, 24, 4, 2, 16)),
    OP("attention", "attn_fwd_hd64", BENCH_TFLOPS, bench_op_attn_fwd, DIMS(2, 4096, 14, 2, 64),
       TINY(2, 24, 4, 2, 16)),
    OP("attention", "attn_bwd_hd64", BENCH_TFLOPS, bench_op_attn_bwd, DIMS(2, 4096, 14, 2, 64),
       TINY(2, 24, 4, 2, 16)),
    OP("attention", "attn_fwd_mla", BENCH_TFLOPS, bench_op_attn_mla_fwd, DIMS(2, 4096, 16, 16, 192, 128),
       TINY(2, 24, 4, 4, 24, 16)),
    OP("attention", "attn_bwd_mla", BENCH_TFLOPS, bench_op_attn_mla_bwd, DIMS(2, 4096, 16, 16, 192, 128),
       TINY(2, 24, 4, 4, 24, 16)),
    OP("attention", "attn_decode_1.5b_b64", BENCH_GBYTES, bench_op_attn_paged, DIMS(64, 1024, 12, 2, 128),
       TINY(2, 40, 4, 2, 16)),
    OP("attention", "attn_decode_7b_b64", BENCH_GBYTES, bench_op_attn_paged, DIMS(64, 1024, 28, 4, 128),
       TINY(2, 40, 4, 2, 16)),
    OP("attention", "attn_decode_7b_8k", BENCH_GBYTES, bench_op_attn_paged, DIMS(64, 8192, 28, 4, 128),
       TINY(2, 40, 4, 2, 16)),

    ROWS("rmsnorm_fwd", bench_op_rmsnorm_fwd, 1536),
    ROWS("rmsnorm_fwd", bench_op_rmsnorm_fwd, 3584),
    ROWS("rmsnorm_bwd", bench_op_rmsnorm_bwd, 1536),
    ROWS("rmsnorm_bwd", bench_op_rmsnorm_bwd, 3584),
    OP("elementwise", "head_norm_fwd_32_heads", BENCH_GBYTES, bench_op_head_norm_fwd, DIMS(8192, 32, 128),
       TINY(8, 2, 16)),
    OP("elementwise", "head_norm_bwd_32_heads", BENCH_GBYTES, bench_op_head_norm_bwd, DIMS(8192, 32, 128),
       TINY(8, 2, 16)),
    ROWS("bias_bwd", bench_op_bias_bwd, 2048),
    ROWS("bias_bwd", bench_op_bias_bwd, 4608),
    PROJECT("project_fwd", bench_op_project_fwd, 1536, 1),
    PROJECT("project_fwd", bench_op_project_fwd, 3584, 1),
    PROJECT("project_fwd", bench_op_project_fwd, 1536, 16),
    PROJECT("project_bwd", bench_op_project_bwd, 1536, 1),
    PROJECT("project_bwd", bench_op_project_bwd, 3584, 1),
    PROJECT("project_bwd", bench_op_project_bwd, 1536, 16),
    PROJECT("project_bwd", bench_op_project_bwd, 2048, 128),
    ROWS("swiglu_fwd", bench_op_swiglu_fwd, 8960),
    ROWS("swiglu_fwd", bench_op_swiglu_fwd, 18944),
    ROWS("swiglu_bwd", bench_op_swiglu_bwd, 8960),
    ROWS("swiglu_bwd", bench_op_swiglu_bwd, 18944),
    ROWS("gather_rows", bench_op_gather_rows, 1536),
    ROWS("gather_rows", bench_op_gather_rows, 3584),
    OP("elementwise", "rope_12_heads", BENCH_GBYTES, bench_op_rope, DIMS(8192, 12, 128), TINY(8, 2, 16)),
    OP("elementwise", "rope_28_heads", BENCH_GBYTES, bench_op_rope, DIMS(8192, 28, 128), TINY(8, 2, 16)),
    OP("elementwise", "embed_fwd_1536", BENCH_GBYTES, bench_op_embed_fwd, DIMS(8192, 1536, 151936),
       TINY(8, 64, 99)),
    OP("elementwise", "embed_fwd_3584", BENCH_GBYTES, bench_op_embed_fwd, DIMS(8192, 3584, 151936),
       TINY(8, 64, 99)),
    OP("elementwise", "embed_bwd_1536", BENCH_GBYTES, bench_op_embed_bwd, DIMS(8192, 1536, 151936),
       TINY(8, 64, 99)),
    OP("elementwise", "embed_bwd_3584", BENCH_GBYTES, bench_op_embed_bwd, DIMS(8192, 3584, 151936),
       TINY(8, 64, 99)),
    OP("elementwise", "kv_write_4_heads", BENCH_GBYTES, bench_op_kv_write, DIMS(8192, 4, 128),
       TINY(8, 2, 16)),
    OP("elementwise", "vocab_stats", BENCH_GBYTES, bench_op_vocab_stats, DIMS(1024, 151936), TINY(4, 99)),
    OP("elementwise", "vocab_stats_bwd", BENCH_GBYTES, bench_op_vocab_stats_bwd, DIMS(1024, 151936),
       TINY(4, 99)),
    OP("elementwise", "vocab_stats_squares", BENCH_GBYTES, bench_op_vocab_squares, DIMS(1024, 151936),
       TINY(4, 99)),
    OP("elementwise", "top_k_64", BENCH_GBYTES, bench_op_top_k, DIMS(1024, 151936, 64), TINY(4, 99, 7)),
    OP("elementwise", "sample_b64", BENCH_GBYTES, bench_op_sample, DIMS(64, 151936, 0, 1000),
       TINY(4, 99, 0, 1000)),
    OP("elementwise", "sample_top_k_b64", BENCH_GBYTES, bench_op_sample, DIMS(64, 151936, 50, 1000),
       TINY(4, 99, 5, 1000)),
    OP("elementwise", "sample_top_p_b64", BENCH_GBYTES, bench_op_sample, DIMS(64, 151936, 0, 950),
       TINY(4, 99, 0, 950)),
    OP("elementwise", "cast_f32_bf16", BENCH_GBYTES, bench_op_cast, DIMS(1 << 27), TINY(1024)),
    OP("elementwise", "sum_squares_f32", BENCH_GBYTES, bench_op_sum_squares, DIMS(1 << 27), TINY(1024)),
    OP("elementwise", "adamw_bf16", BENCH_GBYTES, bench_op_adamw, DIMS(1 << 27), TINY(1024)),

    MODEL("train", "train_step_1.5b", BENCH_TOKENS, bench_run_train, bench_model_1_5b, BATCH),
    MODEL("train", "critic_step_1.5b", BENCH_TOKENS, bench_run_train_value, bench_model_1_5b, BATCH),
    MODEL("train", "dpo_step_1.5b", BENCH_TOKENS, bench_run_dpo, bench_model_1_5b, BATCH),
    MODEL("train", "fwd_bwd_7b", BENCH_TOKENS, bench_run_fwd_bwd, bench_model_7b, BATCH),
    MODEL("train", "fwd_bwd_30b_a3b_12", BENCH_TOKENS, bench_run_fwd_bwd_kept, bench_model_30b_a3b_12, BATCH),
    MODEL("train", "fwd_bwd_moonlight", BENCH_TOKENS, bench_run_fwd_bwd_kept, bench_model_moonlight, BATCH),
    MODEL("train", "peak_memory_1.5b", BENCH_GIB, bench_run_peak_memory, bench_model_1_5b, BATCH),
    MODEL("train", "strict_overhead_train", BENCH_PERCENT, bench_run_strict_train, bench_model_1_5b, BATCH),
    MODEL("train", "strict_overhead_train_tp2", BENCH_PERCENT, bench_run_strict_train, bench_model_1_5b,
          BATCH, .num_ranks = 2),
    MODEL("train", "strict_overhead_train_tp4", BENCH_PERCENT, bench_run_strict_train, bench_model_1_5b,
          BATCH, .num_ranks = 4),
    MODEL("train", "strict_overhead_train_30b_a3b_12", BENCH_PERCENT, bench_run_strict_fwd_bwd,
          bench_model_30b_a3b_12, BATCH),
    MODEL("train", "strict_overhead_train_moonlight_12", BENCH_PERCENT, bench_run_strict_fwd_bwd,
          bench_model_moonlight_12, BATCH),
    MODEL("train", "dp2_scaling_1.5b", BENCH_TIMES, bench_run_dp_scaling, bench_model_1_5b, BATCH,
          .num_ranks = 2),
    MODEL("train", "tp2_speedup_7b", BENCH_TIMES, bench_run_tp_speedup, bench_model_7b, BATCH,
          .num_ranks = 2),
    MODEL("train", "dp_1.5b_dp2", BENCH_TIMES, bench_run_dp_scaling, bench_model_1_5b, BATCH, ON(2)),
    MODEL("train", "dp_1.5b_dp4", BENCH_TIMES, bench_run_dp_scaling, bench_model_1_5b, BATCH, ON(4)),
    SP("sp_7b_tp2", 2),
    SP("sp_7b_tp4", 4),
    PP("pp_7b_pp2", 2, TWO_STAGES),
    PP("pp_7b_pp4", 4, FOUR_STAGES),
    VPP("vpp_8b_pp2", 2),
    VPP("vpp_8b_pp4", 4),
    STEP("step_7b_tp2", OVER(.tp = 2), ON(2), WHOLE_STEPS(8)),
    STEP("step_7b_pp2", OVER(.pp = 2), ON(2), TWO_STAGES),
    STEP("step_7b_tp4", OVER(.tp = 4), ON(4), WHOLE_STEPS(8)),
    STEP("step_7b_pp4", OVER(.pp = 4), ON(4), FOUR_STAGES),
    STEP("step_7b_tp2pp2", OVER(.tp = 2, .pp = 2), ON(4), TWO_STAGES),
    STEP("step_7b_dp2tp2", OVER(.tp = 2, .dp = 2), ON(4), WHOLE_STEPS(4)),
    EP("ep_30b_a3b_12_ep2", bench_model_30b_a3b_12, 2),
    EP("ep_30b_a3b_12_ep4", bench_model_30b_a3b_12, 4),
    EP("ep_30b_a3b_ep4", bench_model_30b_a3b, 4),
    CP("cp_1.5b_cp2", 2),
    CP("cp_1.5b_cp4", 4),
    MODEL("logprob", "logprob_1.5b", BENCH_TOKENS, bench_run_log_prob, bench_model_1_5b, BATCH),
    MODEL("logprob", "values_1.5b", BENCH_TOKENS, bench_run_values, bench_model_1_5b, BATCH),
    MODEL("logprob", "logprob_7b", BENCH_TOKENS, bench_run_log_prob, bench_model_7b, BATCH),
    MODEL("decode", "decode_1.5b_b64", BENCH_TOKENS, bench_run_decode, bench_model_1_5b, DECODE(64)),
    MODEL("decode", "decode_7b_b64", BENCH_TOKENS, bench_run_decode, bench_model_7b, DECODE(64)),
    MODEL("decode", "decode_1.5b_b256", BENCH_TOKENS, bench_run_decode, bench_model_1_5b, DECODE(256)),
    MODEL("decode", "decode_1.5b_b1", BENCH_TOKENS, bench_run_decode, bench_model_1_5b, DECODE(1)),
    MODEL("decode", "decode_1.5b_b64_tp2", BENCH_TOKENS, bench_run_decode, bench_model_1_5b, DECODE(64),
          .num_ranks = 2),
    MODEL("decode", "decode_7b_b64_tp2", BENCH_TOKENS, bench_run_decode, bench_model_7b, DECODE(64),
          .num_ranks = 2),
    MODEL("decode", "decode_30b_a3b_b64", BENCH_TOKENS, bench_run_decode, bench_model_30b_a3b, DECODE(64)),
    MODEL("decode", "decode_30b_a3b_b256", BENCH_TOKENS, bench_run_decode, bench_model_30b_a3b, DECODE(256)),
    MODEL("decode", "decode_moonlight_b64", BENCH_TOKENS, bench_run_decode, bench_model_moonlight,
          DECODE(64)),
    MODEL("decode", "strict_overhead_decode", BENCH_PERCENT, bench_run_strict_decode, bench_model_1_5b,
          DECODE(64)),
    MODEL("decode", "strict_overhead_decode_7b", BENCH_PERCENT, bench_run_strict_decode, bench_model_7b,
          DECODE(64)),
    MODEL("decode", "strict_overhead_decode_30b_a3b", BENCH_PERCENT, bench_run_strict_decode,
          bench_model_30b_a3b, DECODE(64)),
    MODEL("decode", "strict_overhead_decode_moonlight", BENCH_PERCENT, bench_run_strict_decode,
          bench_model_moonlight, DECODE(64)),
    MODEL("decode", "strict_overhead_decode_tp2", BENCH_PERCENT, bench_run_strict_decode, bench_model_1_5b,
          DECODE(64), .num_ranks = 2),
    MODEL("decode", "strict_overhead_decode_tp4", BENCH_PERCENT, bench_run_strict_decode, bench_model_1_5b,
          DECODE(64), .num_ranks = 4),
    MODEL("decode", "strict_overhead_decode_7b_tp2", BENCH_PERCENT, bench_run_strict_decode, bench_model_7b,
          DECODE(64), .num_ranks = 2),
    MODEL("decode", "strict_overhead_decode_7b_tp4", BENCH_PERCENT, bench_run_strict_decode, bench_model_7b,
          DECODE(64), .num_ranks = 4),

    MODEL("ckpt", "load_hf_1.5b", BENCH_GBYTES, bench_run_load_hf, bench_model_1_5b),
    MODEL("ckpt", "load_hf_7b", BENCH_GBYTES, bench_run_load_hf, bench_model_7b),
    CKPT("ckpt_stall_1.5b", BENCH_CKPT_STALL),
    CKPT("ckpt_save_1.5b", BENCH_CKPT_SAVE),
    CKPT("ckpt_load_1.5b", BENCH_CKPT_LOAD),

    RPC_STATUS("rpc_status_tcp", BENCH_TCP),
    RPC_STATUS("rpc_status_unix", BENCH_UNIX),
    RPC_STATUS("rpc_status_tls", BENCH_TLS),
    RPC("rpc_dispatch_8", BENCH_MICROS, bench_run_rpc_dispatch, BENCH_UNIX, 8, 500, 0),
    RPC_STREAM("rpc_stream_tcp", BENCH_TCP),
    RPC_STREAM("rpc_stream_unix", BENCH_UNIX),
    RPC_STREAM("rpc_stream_tls", BENCH_TLS),
    RPC("rpc_beside_stream", BENCH_MICROS, bench_run_rpc_beside, BENCH_TCP, 1, 5000, 1 << 28),
    RPC("rpc_raw_call_tcp", BENCH_MICROS, bench_run_rpc_raw_call, BENCH_TCP, 1, 2000, 0),
    RPC("rpc_raw_call_unix", BENCH_MICROS, bench_run_rpc_raw_call, BENCH_UNIX, 1, 2000, 0),
    RPC("rpc_raw_call_tls", BENCH_MICROS, bench_run_rpc_raw_call, BENCH_TLS, 1, 2000, 0),
    RPC("rpc_raw_stream_tcp", BENCH_GBYTES, bench_run_rpc_raw_stream, BENCH_TCP, 1, 0, 1 << 28),
    RPC("rpc_raw_stream_unix", BENCH_GBYTES, bench_run_rpc_raw_stream, BENCH_UNIX, 1, 0, 1 << 28),
    RPC("rpc_raw_stream_tls", BENCH_GBYTES, bench_run_rpc_raw_stream, BENCH_TLS, 1, 0, 1 << 28),

    COMM("comm", "all_reduce_256m", BENCH_GBYTES, 1 << 28, BENCH_ALL_REDUCE),
    COMM("comm", "all_reduce_16k", BENCH_MICROS, 1 << 14, BENCH_ALL_REDUCE),
    COMM("comm", "reduce_scatter_256m", BENCH_GBYTES, 1 << 28, BENCH_REDUCE_SCATTER),
    COMM("reshard", "gather_params_1.5b", BENCH_GBYTES, 3087428608, BENCH_ALL_GATHER),
    UPDATE("update_weights_7b_pp2_to_tp2", 2, OVER(.pp = 2), TO(.tp = 2)),
    UPDATE("update_weights_7b_tp2_to_dp2", 2, OVER(.tp = 2), TO(.dp = 2)),
    UPDATE("update_weights_7b_tp2_to_tp2", 2, OVER(.tp = 2), TO(.tp = 2)),
    UPDATE("update_weights_7b_pp4_to_tp4", 4, OVER(.pp = 4), TO(.tp = 4)),
    UPDATE("update_weights_7b_tp2pp2_to_tp2", 4, OVER(.tp = 2, .pp = 2), TO(.tp = 2, .dp = 2)),
    UPDATE("update_weights_7b_pp4_to_dp4", 4, OVER(.pp = 4), TO(.dp = 4)),
    UPDATE("update_weights_7b_tp4_to_tp4", 4, OVER(.tp = 4), TO(.tp = 4)),
};
const int bench_num_cases = RK_ARRAY_LEN(bench_cases);
