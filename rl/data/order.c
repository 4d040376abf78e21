/* Permutations by seed and epoch. */
#include "rl/data/order_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_rng.h"

#define SHUFFLE_STREAM "data.shuffle" /* names the random stream of the permutations */

void rk_epoch_order_init(struct rk_epoch_order *order, int64_t count, bool shuffle, uint64_t seed)
{
    *order = (struct rk_epoch_order){.shuffle = shuffle, .seed = seed, .count = count, .epoch = -1};
}

void rk_epoch_order_fini(struct rk_epoch_order *order)
{
    rk_free(order->rows);
    *order = (struct rk_epoch_order){0};
}

int64_t rk_epoch_order_at(struct rk_epoch_order *order, int64_t epoch, int64_t i)
{
    RK_ASSERT(epoch >= 0);
    RK_ASSERT(i >= 0);
    RK_ASSERT(i < order->count);
    if (!order->shuffle)
        return i;
    if (!order->rows)
        order->rows = rk_calloc((size_t)order->count, sizeof(*order->rows));
    if (order->epoch != epoch) {
        rk_rng_permutation(order->seed, rk_rng_stream_of_name(SHUFFLE_STREAM) + (uint64_t)epoch, order->count,
                           order->rows);
        order->epoch = epoch;
    }
    return order->rows[i];
}
