#include "base/layout/rk_zigzag.h"

#include <limits.h>

#include "base/rk_assert.h"

int64_t rk_zigzag_padded_length(int64_t length, int32_t cp_size, int32_t tp_size)
{
    int64_t unit = (int64_t)2 * cp_size * tp_size;

    RK_ASSERT(length >= 0);
    RK_ASSERT(cp_size >= 1);
    RK_ASSERT(tp_size >= 1);
    return (length + unit - 1) / unit * unit;
}

struct rk_status *rk_zigzag_check(const struct rk_zigzag *cut)
{
    for (int32_t s = 0; s < cut->num_seqs; s++) {
        int64_t length = (int64_t)cut->cu_seqlens[s + 1] - cut->cu_seqlens[s];

        if (length < 0 || length % ((int64_t)2 * cut->cp_size) != 0)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "sequence %d has %lld tokens, expected a multiple of 2 * cp_size=%lld", s,
                           (long long)length, (long long)cut->cp_size * 2);
    }
    return NULL;
}

/* Chunk length C of a sequence. */
static int32_t chunk_tokens(const struct rk_zigzag *cut, int32_t seq)
{
    int32_t length = cut->cu_seqlens[seq + 1] - cut->cu_seqlens[seq];

    RK_ASSERT(cut->cp_size >= 1 && cut->cp_size <= INT32_MAX / 2);
    RK_ASSERT(length % (2 * cut->cp_size) == 0);
    return length / (2 * cut->cp_size);
}

/* Position in its sequence of the first token of the rank's early chunk (0) or late one (1). */
static int32_t chunk_position(const struct rk_zigzag *cut, int32_t seq, int32_t cp_rank, int half)
{
    int32_t chunk = half == 0 ? cp_rank : 2 * cut->cp_size - 1 - cp_rank;

    RK_ASSERT(cp_rank >= 0 && cp_rank < cut->cp_size);
    return chunk * chunk_tokens(cut, seq);
}

int32_t rk_zigzag_num_rows(const struct rk_zigzag *cut)
{
    return cut->cu_seqlens[cut->num_seqs] / cut->cp_size;
}

void rk_zigzag_cu_seqlens(const struct rk_zigzag *cut, int32_t *cu_seqlens)
{
    cu_seqlens[0] = 0;
    for (int32_t s = 0; s < cut->num_seqs; s++)
        cu_seqlens[s + 1] = cu_seqlens[s] + 2 * chunk_tokens(cut, s);
}

void rk_zigzag_positions(const struct rk_zigzag *cut, int32_t cp_rank, int32_t *positions)
{
    for (int32_t s = 0; s < cut->num_seqs; s++) {
        for (int half = 0; half < 2; half++) {
            int32_t first = chunk_position(cut, s, cp_rank, half);

            for (int32_t u = 0; u < chunk_tokens(cut, s); u++)
                *positions++ = first + u;
        }
    }
}

void rk_zigzag_rows(const struct rk_zigzag *cut, int32_t cp_rank, int32_t *rows)
{
    rk_zigzag_positions(cut, cp_rank, rows);
    for (int32_t s = 0; s < cut->num_seqs; s++) {
        for (int32_t u = 0; u < 2 * chunk_tokens(cut, s); u++)
            *rows++ += cut->cu_seqlens[s];
    }
}

void rk_zigzag_gathered_rows(const struct rk_zigzag *cut, int32_t *gathered)
{
    int32_t at = 0;

    for (int32_t rank = 0; rank < cut->cp_size; rank++) {
        for (int32_t s = 0; s < cut->num_seqs; s++) {
            for (int half = 0; half < 2; half++) {
                int32_t first = cut->cu_seqlens[s] + chunk_position(cut, s, rank, half);

                for (int32_t u = 0; u < chunk_tokens(cut, s); u++)
                    gathered[first + u] = at++;
            }
        }
    }
}

void rk_zigzag_list_segments(const struct rk_zigzag *cut, int32_t cp_rank, unsigned halves,
                             struct rk_zigzag_segments *out)
{
    out->cu_seqlens[0] = 0;
    for (int32_t i = 0; i < 2 * cut->num_seqs; i++) {
        int32_t seq = i / 2, half = i % 2, count = chunk_tokens(cut, seq);

        out->cu_seqlens[i + 1] = out->cu_seqlens[i] + count;
        out->k_begin[i] = cut->cu_seqlens[seq];
        out->k_lens[i] = (halves & 1u << half) ? chunk_position(cut, seq, cp_rank, half) + count : 0;
    }
}
