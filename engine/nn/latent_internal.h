/* Private to engine/nn: declarations shared by the packed and the paged form of latent attention. */
#ifndef RK_LATENT_INTERNAL_H
#define RK_LATENT_INTERNAL_H

#include "engine/nn/nn.h"

/* A block of latent attention on this rank. */
struct rk_latent {
    struct rk_weight down; /* [q_a; kv_a], or kv_a only; replicated over tp */
    struct rk_weight q;    /* of this rank's heads, from the latent of queries or the hidden state */
    struct rk_weight kv;   /* [nope; v] of this rank's heads */
    struct rk_weight o;
    struct rk_weight q_norm, kv_norm;
    int64_t num_heads, q_rank, kv_rank, nope, rope, v_head_dim;
    bool is_interleaved; /* pairs of RoPE are columns 2 k and 2 k + 1, not k and k + width / 2 */
    float scale;
    int64_t expanded_bytes; /* bytes of keys and values that a step over a cache computes at a time */
};

/* Columns of a query and a key; of the cached vector of a token; of a head in the result of kv. */
static inline int64_t rk_latent_head_dim(const struct rk_latent *latent)
{
    return latent->nope + latent->rope;
}

static inline int64_t rk_latent_width(const struct rk_latent *latent)
{
    return latent->kv_rank + latent->rope;
}

static inline int64_t rk_latent_kv_dim(const struct rk_latent *latent)
{
    return latent->nope + latent->v_head_dim;
}

/* Activations of the declaration. Some are computed once in each direction. */
enum {
    RK_LATENT_DOWN,
    RK_LATENT_Q_RSTD,
    RK_LATENT_KV_RSTD,
    RK_LATENT_Q,
    RK_LATENT_OUT,
    RK_LATENT_LSE,
    RK_LATENT_Q_LATENT,
    RK_LATENT_LATENT,
    RK_LATENT_Q_UP, /* forward */
    RK_LATENT_Q_LATENT_AGAIN,
    RK_LATENT_LATENT_AGAIN,
    RK_LATENT_Q_UP_AGAIN, /* backward */
    RK_LATENT_DOUT,
    RK_LATENT_DQ,
    RK_LATENT_DQ_LATENT,
    RK_LATENT_DLATENT,
    RK_LATENT_DDOWN,
    RK_LATENT_DX,
    RK_LATENT_NUM_ACTIVATIONS
};
_Static_assert(RK_LATENT_NUM_ACTIVATIONS <= RK_BLOCK_MAX_ACTIVATIONS, "a declaration holds them");

/* latent_declare.c */
struct rk_status *rk_latent_declare(struct rk_block *block, struct rk_param_table *params,
                                    const struct rk_block_site *site) RK_NODISCARD;

/* The up-projection of `latents` [n, width] for `num_heads` heads from `first` on, in the arena: [n,
 * num_heads * kv_dim]. */
struct rk_status *rk_latent_expand(const struct rk_pass *pass, const struct rk_latent *latent,
                                   rk_tensor_t latents, int64_t first, int64_t num_heads,
                                   rk_tensor_t *kv) RK_NODISCARD;

/* latent_paged.c: attention of new tokens, whose queries q [T, heads, head_dim] and latents [T, width] are
 * rotated, over the block's cache, to which the latents are written. */
struct rk_status *rk_latent_attend_paged(const struct rk_pass *pass, const struct rk_block *block,
                                         rk_tensor_t q, rk_tensor_t latents, rk_tensor_t out) RK_NODISCARD;

#endif
