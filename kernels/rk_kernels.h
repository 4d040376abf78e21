/* Math operators: argument structs, the table that a backend fills in, and the checked wrappers for callers.
 *
 * Common rules. T = packed tokens of the call. Float tensors of one call have one dtype unless a comment says
 * otherwise: F32, BF16, F16 or (CPU only, for tests) F64; all arithmetic is done in at least f32, sums inside
 * a row in f64 on the CPU, and every result is rounded once. "stat" tensors are F32, or F64 when the floats
 * are F64. Integer tensors are I32. A tensor whose data is NULL is "none" where a comment allows it. Outputs
 * must not alias inputs unless stated. Calls enqueue on `stream` and do not synchronise. Empty calls (T = 0)
 * are valid and do nothing. Every operator is deterministic, and in row-wise operators the result of a row
 * does not depend on the other rows of the call. A "settled" input was complete before the pass began and no
 * operator of the pass writes it (parameters, a step's tables): it may be read before earlier work on the
 * stream has ended; false is always correct. Errors: INVALID_ARGUMENT naming operator, argument, value and
 * expectation (only the CPU backend checks values in integer tensors); UNIMPLEMENTED for a dtype or size that
 * the backend does not support. References: kernels/cpu/. */
#ifndef RK_KERNELS_H
#define RK_KERNELS_H

#include "base/rk_status.h"
#include "kernels/rk_device.h"
#include "kernels/rk_kernels_vocab.h"
#include "kernels/rk_tensor.h"

RK_BEGIN_DECLS

#define RK_KERNEL_ABI 13

/* C[M, N] = alpha * op(A) * op(B) + beta * C (+ bias[N]); op is a transpose if trans_* is set.
 * Linear layers: Y = X W^T is trans_b; dX = dY W needs no transpose; dW += dY^T X is trans_a with beta 1.
 * C may have another float dtype than A and B (gradients in f32). beta 0 does not read C.
 * strict: every output is one ascending chain over K, so it does not depend on M or N. */
struct rk_gemm_args {
    rk_tensor_t c, a, b;
    rk_tensor_t bias; /* none, or [N] */
    /* None, or [M, N / 2]: silu(C[:, :N / 2]) * C[:, N / 2:], bit-identical to swiglu_fwd; C is then
     * undefined. */
    rk_tensor_t swiglu;
    bool trans_a, trans_b, strict, b_is_settled;
    float alpha, beta;
};

/* Grouped GEMM: groups of rows, each multiplied by its own matrix: the experts of a layer. Group g has the
 * rows [offsets[g], offsets[g + 1]) of x and y; rows from offsets[G] on are neither read nor written. An
 * output does not depend on other groups, and its sums are those of gemm with the same strict. */
struct rk_grouped_gemm_args {
    rk_tensor_t y;       /* [R, n] */
    rk_tensor_t x;       /* [R, k] */
    rk_tensor_t w;       /* [G, n, k] with trans_w: y = x w^T; else [G, k, n]: y = x w. Contiguous */
    rk_tensor_t offsets; /* I32 [G + 1], from 0, non-decreasing, at most R */
    /* None, or [R, n / 2]: silu(y[:, :n / 2]) * y[:, n / 2:], times the row's prob where there is one,
     * bit-identical to swiglu_fwd; y is then undefined. */
    rk_tensor_t swiglu;
    rk_tensor_t probs; /* none, or with swiglu stat [R] */
    bool trans_w, strict;
    int64_t likely_rows; /* an estimate of offsets[G], for the size of tiles; 0: R. It changes no result */
};

/* dw[g] += sum over the rows r of group g of dy[r]^T x[r], in ascending r. */
struct rk_grouped_gemm_wgrad_args {
    rk_tensor_t dw;      /* [G, n, k], F32 or the dtype of x, contiguous */
    rk_tensor_t dy;      /* [R, n] */
    rk_tensor_t x;       /* [R, k] */
    rk_tensor_t offsets; /* as in the forward call */
    bool overwrites_dw;  /* = instead of +=: old contents are not read, and a group without rows gets zeros */
    bool strict;
};

/* Batched GEMM over the heads of rows (latent attention): y[t][h] = x[t][h] op(w[h]) for every head h. The
 * first n columns of y's heads are written, and the first k of x's are read. */
struct rk_batched_gemm_args {
    rk_tensor_t y; /* [T, heads, n or more] */
    rk_tensor_t x; /* [T, heads, k or more] */
    rk_tensor_t w; /* [heads, k, n], or [heads, n, k] with trans_w: w^T; gaps between matrices are legal */
    bool trans_w;
};

/* Routing: the experts of each token, and their weights. s = softmax(logits) over the experts, or the sigmoid
 * of each; the K experts with the largest s + bias are chosen, in descending order, equal ones by ascending
 * id. With num_groups > 1 the experts are num_groups equal ranges, of which only the topk_groups best ones
 * are eligible; the score of a group is the sum of its two largest s + bias. Then probs = scale * s[id],
 * divided first by the sum of the K if `normalizes` (plus 1e-20 for sigmoids). DeepSeek-V3, arXiv:2412.19437,
 * 2.1.2. */
struct rk_moe_route_args {
    rk_tensor_t ids;    /* I32 [T, K], K up to RK_MOE_TOP_K_MAX */
    rk_tensor_t probs;  /* stat [T, K] */
    rk_tensor_t logits; /* stat [T, E], E up to RK_MOE_EXPERTS_MAX */
    rk_tensor_t bias;   /* none, or [P, E] of any float dtype: its value is the sum of the P rows, in stat */
    rk_tensor_t given;  /* none, or I32 [T, K]: the ids to use, independent of the scores (replay); an id
                         * below 0 means no expert: prob 0 */
    rk_tensor_t chosen; /* none, or I16 [T, K], rows of any stride: receives the choice by s + bias, also with
                         * `given` */
    bool is_sigmoid, normalizes;
    int32_t num_groups, topk_groups; /* 1, 1: none */
    float scale;
};

#define RK_MOE_EXPERTS_MAX 1024
#define RK_MOE_TOP_K_MAX   32

/* dlogits from the gradients of the K probabilities of the forward call; neither the choice nor bias has a
 * gradient. */
struct rk_moe_route_bwd_args {
    struct rk_moe_route_args fwd; /* as in the forward call: ids is an input now, probs is not used */
    rk_tensor_t dlogits;          /* stat [T, E]; overwritten */
    rk_tensor_t dprobs;           /* stat [T, K] */
};

/* counts[s][e] += tokens of segment s that go to expert e; exact up to 2^24. */
struct rk_moe_count_args {
    rk_tensor_t counts;   /* stat [S, E] */
    rk_tensor_t ids;      /* I32 [T, K]; below 0: none */
    rk_tensor_t segments; /* I32 [T], each < S; below 0: padding, which is not counted */
};

/* Columns of rk_moe_balance_args.sums behind the columns of the experts. */
enum { RK_ROUTER_TOKENS, RK_ROUTER_ENTROPY, RK_ROUTER_BALANCE, RK_ROUTER_Z, RK_NUM_ROUTER_SUMS };

/* Sums over the tokens of a router, and the gradients of losses on its scores. With s the scores of moe_route
 * and p = s / sum s (softmax: s; plus 1e-20 for sigmoids), of the tokens with a segment:
 *   sums[e] += tokens that go to expert e
 *   sums[E..] += 1, -sum_e p log p, balance = sum_e weights[segment] counts[segment][e] p_e,
 *                z = logsumexp(logits)^2
 *   dlogits += d (balance + z_weight * z); counts are constants
 * balance is the loss of Shazeer et al., arXiv:2101.03961, and z that of Zoph et al., arXiv:2202.08906. */
struct rk_moe_balance_args {
    rk_tensor_t sums;            /* F64 [E + RK_NUM_ROUTER_SUMS]; accumulated */
    rk_tensor_t dlogits;         /* none, or stat [T, E]; accumulated */
    rk_tensor_t logits;          /* stat [T, E] */
    rk_tensor_t ids;             /* I32 [T, K]; below 0: none */
    rk_tensor_t segments;        /* I32 [T]; below 0: padding */
    rk_tensor_t counts, weights; /* both none, or stat [S, E] and stat [S] */
    double z_weight;
    bool is_sigmoid;
};

/* The order of tokens for the experts: rows sorted by expert, then by token. */
struct rk_moe_sort_args {
    rk_tensor_t offsets; /* I32 [E + 1]: expert first + e has the rows [offsets[e], offsets[e + 1]) */
    rk_tensor_t tokens;  /* I32 [T * K]: the token of each row; 0 from offsets[E] on */
    rk_tensor_t places;  /* I32 [T, K]: the row of each choice; -1 if there is none */
    rk_tensor_t ids;     /* I32 [T, K]: experts, distinct in a token; below 0: none */
    /* Only experts [first, first + E) of num_experts get rows; num_experts 0: E, which are all experts. */
    int64_t first, num_experts;
};

/* y[t] = sum over k, by ascending ids[t][k], of x[places[t][k]]: the sum of the experts' outputs for a token.
 * Applied to gradients of the rows, it is the backward pass of gather_rows over tokens. */
struct rk_moe_combine_args {
    rk_tensor_t y;      /* [T, hidden_size] */
    rk_tensor_t x;      /* [R, hidden_size] */
    rk_tensor_t places; /* I32 [T, K], each < R; below 0: none. No tensor: places[t][k] = t K + k */
    rk_tensor_t ids;    /* I32 [T, K] */
};

/* dbias[n] += sum_t dy[t, n]: the gradient of the bias of a linear layer. */
struct rk_bias_bwd_args {
    rk_tensor_t dbias; /* [columns], F32 or the dtype of dy; accumulated */
    rk_tensor_t dy;    /* [T, columns] */
};

/* out[t] = table[tokens[t] - vocab_begin]; zero where that row is not in the table. */
struct rk_embed_fwd_args {
    rk_tensor_t out;    /* [T, hidden_size] */
    rk_tensor_t table;  /* [rows, hidden_size]: this rank's part of the vocabulary */
    rk_tensor_t tokens; /* I32 [T] */
    int64_t vocab_begin;
};

/* dtable[tokens[t] - vocab_begin] += dout[t], in ascending t; tokens outside the range are skipped. */
struct rk_embed_bwd_args {
    rk_tensor_t dtable; /* [rows, hidden_size], F32 or the dtype of dout */
    rk_tensor_t dout;   /* [T, hidden_size] */
    rk_tensor_t tokens; /* I32 [T] */
    int64_t vocab_begin;
};

/* Per row: s = x + residual (s = x without residual); y = s * rstd * weight, rstd = 1/sqrt(mean(s^2) + eps).
 * s is rounded to the tensors' dtype before it is normalised. Zhang & Sennrich, arXiv:1910.07467. */
struct rk_rmsnorm_fwd_args {
    rk_tensor_t y;        /* [T, hidden_size] */
    rk_tensor_t rstd;     /* stat [T], or none when no backward follows */
    rk_tensor_t x;        /* [T, hidden_size] */
    rk_tensor_t residual; /* none, or [T, hidden_size] */
    rk_tensor_t sum;      /* output s; none without residual; may alias x or residual */
    rk_tensor_t weight;   /* [hidden_size] */
    bool weight_is_settled;
    float eps;
};

/* Gradients of the norm, with xhat = x * rstd and g = dy * weight:  dx = dresidual + rstd * (g - xhat *
 * mean(g * xhat)), dweight += sum_t dy * xhat. */
struct rk_rmsnorm_bwd_args {
    rk_tensor_t dx;        /* [T, hidden_size]; may alias dresidual */
    rk_tensor_t dweight;   /* [hidden_size], F32 or the dtype of dy; accumulated */
    rk_tensor_t dy, x;     /* [T, hidden_size]; x is the input of the norm (s) */
    rk_tensor_t dresidual; /* none, or [T, hidden_size] */
    rk_tensor_t weight;    /* [hidden_size] */
    rk_tensor_t rstd;      /* stat [T] */
};

/* The same norm over every head, without a residual: y[t][h] = x[t][h] * rstd[t][h] * weight, rstd =
 * 1/sqrt(mean over head_dim of x^2 + eps). For queries and keys, as in Qwen3. */
struct rk_head_norm_fwd_args {
    rk_tensor_t y;      /* [T, heads, head_dim]; may alias x */
    rk_tensor_t rstd;   /* stat [T, heads], or none when no backward follows */
    rk_tensor_t x;      /* [T, heads, head_dim] */
    rk_tensor_t weight; /* [head_dim] */
    float eps;
};

/* Like rmsnorm_bwd, for each row of all heads; dweight is summed over tokens and heads. */
struct rk_head_norm_bwd_args {
    rk_tensor_t dx;      /* [T, heads, head_dim]; may alias dy */
    rk_tensor_t dweight; /* [head_dim], F32 or the dtype of dy; accumulated */
    rk_tensor_t dy, x;   /* [T, heads, head_dim]; x is the input of the norm */
    rk_tensor_t weight;  /* [head_dim] */
    rk_tensor_t rstd;    /* stat [T, heads] */
};

/* A narrow linear layer in full precision: value heads, classification scores.
 *   scores[t][c] = x[t] . weight[c] + bias[c]
 * Not for hundreds of columns: the input is read once per small group of columns. */
struct rk_project_fwd_args {
    rk_tensor_t scores; /* stat [T, columns] */
    rk_tensor_t x;      /* [T, hidden_size] */
    rk_tensor_t weight; /* [columns, hidden_size] */
    rk_tensor_t bias;   /* none, or [columns] */
};

/* dx[t] = sum_c dscores[t][c] * weight[c];  dweight[c] += sum_t dscores[t][c] * x[t].
 * The gradient of the bias is that of bias_bwd. */
struct rk_project_bwd_args {
    rk_tensor_t dx;          /* [T, hidden_size] */
    rk_tensor_t dweight;     /* [columns, hidden_size], F32 or the dtype of x, contiguous */
    rk_tensor_t dscores;     /* stat [T, columns] */
    rk_tensor_t x;           /* [T, hidden_size] */
    rk_tensor_t weight;      /* [columns, hidden_size] */
    bool overwrites_dweight; /* = instead of +=: old contents are not read */
};

/* RoPE in place, pairs (k, k + head_dim/2) (NeoX layout), cos and sin at row positions[t]:
 *   x[k] <- x[k] cos - x[k + d/2] sin,  x[k + d/2] <- x[k + d/2] cos + x[k] sin
 * With is_interleaved the pairs are the columns 2 k and 2 k + 1 instead, as in DeepSeek's weights. The
 * inverse rotation is the backward pass. The first `begin` columns of every head do not change: d is the
 * number of the columns after them. Su et al., arXiv:2104.09864. */
struct rk_rope_args {
    rk_tensor_t x;         /* [T, heads, head_dim] */
    rk_tensor_t cos, sin;  /* F32 [max_position, (head_dim - begin) / 2] */
    rk_tensor_t positions; /* I32 [T], each < max_position */
    bool inverse, is_interleaved;
    int64_t begin;
};

/* y = silu(gate) * up, times prob of the row where there is one: the weight of an expert's result, put in
 * front of the product that makes it, which is linear. */
struct rk_swiglu_fwd_args {
    rk_tensor_t y, gate, up; /* [T, intermediate_size] */
    rk_tensor_t probs;       /* none, or stat [T] */
    rk_tensor_t count;       /* none, or I32 [1]: y is written for the first `count` rows only */
};

struct rk_swiglu_bwd_args {
    rk_tensor_t dgate, dup; /* [T, intermediate_size]; may alias gate and up */
    rk_tensor_t dy, gate, up;
    rk_tensor_t y;      /* none, or recomputes the forward result, bit-identical; may alias dy */
    rk_tensor_t probs;  /* as in the forward call */
    rk_tensor_t dprobs; /* with probs stat [T]: sum over the columns of dy * silu(gate) * up; else none */
    rk_tensor_t count;  /* none, or I32 [1]: the first `count` rows only are read and written */
};

/* Causal attention over packed sequences; q head h reads kv head h / (num_heads / num_kv_heads). head_dim is
 * the width of a query and a key, v_head_dim that of a value and a result.
 *   out[i] = sum_j softmax_j(scale * q[i].k[j]) v[j],   j <= i in the same sequence
 * and, if window > 0, i - j < window. Dao, arXiv:2307.08691.
 * Cost: num_heads * (head_dim + v_head_dim) * sum(len^2) FLOPs.
 *
 * With k_begin and k_lens the queries of a call are parts of sequences with separate key ranges (context
 * parallelism): those of segment s, the n_s rows of q from cu_seqlens[s], are the last n_s positions of a
 * sequence whose keys are the k_lens[s] rows of k and v from k_begin[s]. Query i of it is at position
 * k_lens[s] - n_s + i, is bit-identical to that position in a call over that sequence alone, and does not
 * depend on other rows of k and v. k_lens[s] is n_s or more, or 0: then the segment is skipped, k_begin[s] is
 * ignored, and its rows of out and columns of lse are not written. Key ranges may overlap. */
struct rk_attn_varlen_args {
    rk_tensor_t out;             /* [T, num_heads, v_head_dim] */
    rk_tensor_t lse;             /* stat [num_heads, T], natural log; none when no backward pass follows */
    rk_tensor_t q;               /* [T, num_heads, head_dim] */
    rk_tensor_t k;               /* [T, num_kv_heads, head_dim]; with k_begin any number of rows, as v */
    rk_tensor_t v;               /* [T, num_kv_heads, v_head_dim] */
    rk_tensor_t cu_seqlens;      /* I32 [num_seqs + 1], from 0 to T, non-decreasing */
    rk_tensor_t k_begin, k_lens; /* both none, or I32 [num_seqs] */
    int32_t max_seqlen;          /* maximum difference between elements of cu_seqlens */
    int32_t window;              /* 0: none */
    float scale;
};

/* With k_begin, the key ranges of a call must be disjoint: a row of dk and dv is the sum over the queries of
 * one segment. Segments that share keys, such as the two of a zig-zag split, need separate calls, each with
 * the lengths of the other segments set to 0; the caller adds their dk and dv. Rows of dk and dv outside of
 * all ranges are set to 0; rows of dq of a skipped segment are not written. */
struct rk_attn_varlen_bwd_args {
    struct rk_attn_varlen_args fwd; /* as in the forward call: out and lse are inputs now */
    rk_tensor_t dq, dk, dv;         /* like q, k, v; overwritten */
    rk_tensor_t dout;               /* like out */
};

/* Writes keys and values of T tokens into a paged cache; slot = block * block_size + offset, or -1: skip.
 * v_cache and v none: the cache is one tensor, whose rows are both keys and values. */
struct rk_kv_write_args {
    rk_tensor_t k_cache;      /* [num_blocks, num_kv_heads, block_size, head_dim] */
    rk_tensor_t v_cache;      /* [num_blocks, num_kv_heads, block_size, v_head_dim], or none */
    rk_tensor_t k;            /* [T, num_kv_heads, head_dim] */
    rk_tensor_t v;            /* [T, num_kv_heads, v_head_dim], or none */
    rk_tensor_t slot_mapping; /* I32 [T] */
};

/* Fuses the operators between the projection of new tokens and their attention over a cache: applies rope in
 * place to q and k, then kv_write to k and v, bit-identical to the separate operators. */
struct rk_rope_kv_write_args {
    rk_tensor_t q;              /* [T, num_heads, head_dim] */
    rk_tensor_t cos, sin;       /* F32 [max_position, head_dim / 2] */
    rk_tensor_t positions;      /* I32 [T], each < max_position */
    struct rk_kv_write_args kv; /* of the same T tokens */
    bool places_are_settled;    /* positions, slots and tables */
};

/* Keys and values of latent attention, from the product of the up-projection (DeepSeek-V2, arXiv:2405.04434):
 *   k[t][h] = [kv[t][h][:nope], rope[t]],  v[t][h] = kv[t][h][nope:],  nope = head_dim - rope_dim
 * k and v of rank 4 are a cache that has the tokens in their order. */
struct rk_latent_kv_args {
    rk_tensor_t k;    /* [T, heads, head_dim], or [T / block_size, heads, block_size, head_dim] */
    rk_tensor_t v;    /* the same with v_head_dim */
    rk_tensor_t kv;   /* [T, heads, nope + v_head_dim] */
    rk_tensor_t rope; /* [T, rope_dim]: the part that all heads share */
};

/* dkv[t][h] = [dk[t][h][:nope], dv[t][h]],  drope[t] = sum over the heads, in their order, of
 * dk[t][h][nope:]. */
struct rk_latent_kv_bwd_args {
    rk_tensor_t dkv;   /* [T, heads, nope + v_head_dim] */
    rk_tensor_t drope; /* [T, rope_dim] */
    rk_tensor_t dk;    /* [T, heads, head_dim] */
    rk_tensor_t dv;    /* [T, heads, v_head_dim] */
};

/* A copy of the blocks of some sequences, one sequence after the other, and the table of the copy:
 *   out[r * max_blocks + j] = cache[block_table[r][j]],  numbers[r][j] = r * max_blocks + j */
struct rk_gather_blocks_args {
    rk_tensor_t out;         /* [num_seqs * max_blocks, heads, block_size, width], contiguous */
    rk_tensor_t numbers;     /* I32 [num_seqs, max_blocks] */
    rk_tensor_t cache;       /* [num_blocks, heads, block_size, width] */
    rk_tensor_t block_table; /* I32 [num_seqs, max_blocks] */
};

/* Attention of new tokens over a paged cache (prefill chunks and decode alike). Query j of sequence r is at
 * position seq_lens[r] - n_r + j, n_r = cu_q[r + 1] - cu_q[r], and attends to the keys up to it. The keys of
 * the new tokens must already be in the cache. A sequence with n_r = 0 is skipped. v_cache none: the values
 * are the first v_head_dim columns of the keys, as in latent attention (DeepSeek-V2, arXiv:2405.04434). */
struct rk_attn_paged_args {
    rk_tensor_t out;         /* [T, num_heads, v_head_dim] */
    rk_tensor_t q;           /* [T, num_heads, head_dim] */
    rk_tensor_t k_cache;     /* [num_blocks, num_kv_heads, block_size, head_dim] */
    rk_tensor_t v_cache;     /* [num_blocks, num_kv_heads, block_size, v_head_dim], or none */
    rk_tensor_t block_table; /* I32 [num_seqs, max_blocks] */
    rk_tensor_t cu_q;        /* I32 [num_seqs + 1] */
    rk_tensor_t seq_lens;    /* I32 [num_seqs] */
    int32_t window;          /* 0: none */
    bool past_is_settled;    /* block_table, cu_q, seq_lens, and the cache before the new tokens */
    float scale;
};

/* out[r] = x[index[r]]; scatter: out[index[r]] = x[r] (indices distinct; other rows are not written). */
struct rk_rows_args {
    rk_tensor_t out, x; /* 2-d, same row length and dtype */
    rk_tensor_t index;  /* I32 [number of rows moved] */
    bool has_gaps;      /* index -1 means none: gather writes zeros, scatter skips the row */
    rk_tensor_t count;  /* none, or I32 [1]: the number of rows moved, at most the length of index */
};

/* y = alpha * x + beta * y; dtypes may differ; beta 0 does not read y (a cast). */
struct rk_axpby_args {
    rk_tensor_t y, x; /* same number of elements, contiguous */
    float alpha, beta;
};

/* out[0] += sum x^2, out[1] += number of non-finite elements of x. */
struct rk_sum_squares_args {
    rk_tensor_t out; /* F64 [2] */
    rk_tensor_t x;   /* contiguous */
};

/* out[r][c] = deviation * rk_rng_normal(seed, stream, first + r * row_pitch + c), in f64 and rounded once. So
 * a part of a tensor gets the same values as within the whole tensor. Backends differ only in the last bits
 * of f64 functions, which rounding to a smaller dtype removes except near ties. */
struct rk_random_normal_args {
    rk_tensor_t out; /* [rows, cols] */
    double deviation;
    uint64_t seed, stream;
    uint64_t first, row_pitch; /* element indices: of out[0][0], and from one row to the next */
};

/* out[r][c] = x[r][c], rounded to nearest if the dtypes differ: copies a part of a matrix to a part of
 * another. */
struct rk_copy_2d_args {
    rk_tensor_t out, x; /* [rows, cols]; any float dtypes; must not overlap */
};

/* out[0] += sum rk_fingerprint_of(x[r][c] rounded to `dtype`, first + r * row_pitch + c), modulo 2^64: a hash
 * of a tensor's values that does not depend on its partition or the order of parts. */
struct rk_fingerprint_args {
    rk_tensor_t out;           /* I64 [1] */
    rk_tensor_t x;             /* [rows, cols] */
    rk_dtype_t dtype;          /* a float type; no rounding if it is x's */
    uint64_t first, row_pitch; /* element indices: of x[0][0], and from one row to the next */
};

/* The finalizer of SplitMix64 (Steele et al., OOPSLA 2014). */
static inline uint64_t rk_fingerprint_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Fingerprint of the element with that index, whose value has these bits as F64. */
static inline uint64_t rk_fingerprint_of(uint64_t bits, uint64_t number)
{
    return rk_fingerprint_mix(bits ^ rk_fingerprint_mix(number + 0x9e3779b97f4a7c15u));
}

/* Decoupled AdamW (Loshchilov & Hutter, arXiv:1711.05101) over one segment, g = grad * grad_scale:
 *   m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  w -= lr * (m/c1 / (sqrt(v/c2) + eps) + weight_decay * w)
 * with c1 = 1 - b1^t and c2 = 1 - b2^t computed by the caller in f64. w is master; `param` receives the
 * stored master rounded to its dtype, so that it can be restored from the master. */
struct rk_adamw_args {
    rk_tensor_t param;      /* [n] */
    rk_tensor_t master;     /* [n], F32 (F64 when param is); may alias param when the dtypes agree */
    rk_tensor_t m, v, grad; /* [n], like master */
    double lr, beta1, beta2, eps, weight_decay, correction1, correction2, grad_scale;
};

#define RK_KERNEL_TABLE(X)                            \
    X(gemm, rk_gemm_args)                             \
    X(grouped_gemm, rk_grouped_gemm_args)             \
    X(grouped_gemm_wgrad, rk_grouped_gemm_wgrad_args) \
    X(batched_gemm, rk_batched_gemm_args)             \
    X(moe_route, rk_moe_route_args)                   \
    X(moe_route_bwd, rk_moe_route_bwd_args)           \
    X(moe_count, rk_moe_count_args)                   \
    X(moe_balance, rk_moe_balance_args)               \
    X(moe_sort, rk_moe_sort_args)                     \
    X(moe_combine, rk_moe_combine_args)               \
    X(bias_bwd, rk_bias_bwd_args)                     \
    X(embed_fwd, rk_embed_fwd_args)                   \
    X(embed_bwd, rk_embed_bwd_args)                   \
    X(rmsnorm_fwd, rk_rmsnorm_fwd_args)               \
    X(rmsnorm_bwd, rk_rmsnorm_bwd_args)               \
    X(head_norm_fwd, rk_head_norm_fwd_args)           \
    X(head_norm_bwd, rk_head_norm_bwd_args)           \
    X(project_fwd, rk_project_fwd_args)               \
    X(project_bwd, rk_project_bwd_args)               \
    X(rope, rk_rope_args)                             \
    X(swiglu_fwd, rk_swiglu_fwd_args)                 \
    X(swiglu_bwd, rk_swiglu_bwd_args)                 \
    X(attn_varlen_fwd, rk_attn_varlen_args)           \
    X(attn_varlen_bwd, rk_attn_varlen_bwd_args)       \
    X(kv_write, rk_kv_write_args)                     \
    X(rope_kv_write, rk_rope_kv_write_args)           \
    X(attn_paged, rk_attn_paged_args)                 \
    X(latent_kv, rk_latent_kv_args)                   \
    X(latent_kv_bwd, rk_latent_kv_bwd_args)           \
    X(gather_blocks, rk_gather_blocks_args)           \
    X(vocab_stats, rk_vocab_stats_args)               \
    X(vocab_stats_merge, rk_vocab_stats_merge_args)   \
    X(vocab_stats_bwd, rk_vocab_stats_bwd_args)       \
    X(vocab_gather, rk_vocab_gather_args)             \
    X(vocab_gather_merge, rk_vocab_gather_merge_args) \
    X(top_k, rk_top_k_args)                           \
    X(sample, rk_sample_args)                         \
    X(next_tokens, rk_next_tokens_args)               \
    X(gather_rows, rk_rows_args)                      \
    X(scatter_rows, rk_rows_args)                     \
    X(axpby, rk_axpby_args)                           \
    X(sum_squares, rk_sum_squares_args)               \
    X(random_normal, rk_random_normal_args)           \
    X(copy_2d, rk_copy_2d_args)                       \
    X(fingerprint, rk_fingerprint_args)               \
    X(adamw, rk_adamw_args)

/* The workspace of a call with these arguments, which also suffices for calls with fewer tokens or sequences,
 * for memory plans. Pure functions; tensors have addresses that must not be read. Entries are optional: NULL
 * means none. Every operator that reserves scratch has an entry, and both compute the size with the same
 * function; gpu_test_memory_plan fails if an entry is missing. */
struct rk_workspace_ops {
#define X(op, args_type) struct rk_workspace (*op)(const void *dev, const struct args_type *args);
    RK_KERNEL_TABLE(X)
#undef X
};

/* UNIMPLEMENTED, naming the tensors, if the backend does not support these dtypes and shapes: a dry run
 * checks before memory is allocated, and the operator before it reserves workspace. Pure functions, as above.
 * NULL means no check before the call. */
struct rk_limit_ops {
#define X(op, args_type) struct rk_status *(*op)(const void *dev, const struct args_type *args);
    RK_KERNEL_TABLE(X)
#undef X
};

/* The table of a backend: every entry is required; `dev` and `stream` are the backend's handles. Arguments
 * are checked before an entry is called. */
struct rk_kernel_ops {
    const char *name;
    uint32_t abi;                             /* RK_KERNEL_ABI */
    const struct rk_workspace_ops *workspace; /* optional: NULL means that no operator needs a workspace */
    const struct rk_limit_ops *limits;        /* optional */
#define X(op, args_type) struct rk_status *(*op)(void *dev, void *stream, const struct args_type *args);
    RK_KERNEL_TABLE(X)
#undef X
};

/* The operators: rk_gemm(stream, &args), rk_embed_fwd(stream, &args), ... */
#define X(op, args_type) \
    struct rk_status *rk_##op(struct rk_stream *stream, const struct args_type *args) RK_NODISCARD;
RK_KERNEL_TABLE(X)
#undef X

RK_END_DECLS

#endif
