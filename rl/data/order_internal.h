/* The order of a dataset's rows in each epoch. */
#ifndef RK_ORDER_INTERNAL_H
#define RK_ORDER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

struct rk_epoch_order {
    bool shuffle;
    uint64_t seed;
    int64_t count;
    int64_t epoch; /* of `rows` */
    int64_t *rows; /* [count]; NULL: none yet */
};

/* `order` is zeroed or initialised below; `count` rows. */
void rk_epoch_order_init(struct rk_epoch_order *order, int64_t count, bool shuffle, uint64_t seed);
void rk_epoch_order_fini(struct rk_epoch_order *order);
/* The row at position i of that epoch: i itself, or the i-th of the epoch's permutation. */
int64_t rk_epoch_order_at(struct rk_epoch_order *order, int64_t epoch, int64_t i);

#endif
