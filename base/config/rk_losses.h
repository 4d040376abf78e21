/* Columns that losses read (losses.def): names, and those of an update. */
#ifndef RK_LOSSES_H
#define RK_LOSSES_H

#include <stdint.h>

#include "base/config/losses.def"
#include "base/rk_json.h"

RK_BEGIN_DECLS

typedef enum rk_loss_column {
#define RK_LOSS_COLUMN_ID(id, name) RK_LOSS_##id,
    RK_LOSS_COLUMN_TABLE(RK_LOSS_COLUMN_ID) RK_LOSS_COLUMN_COUNT,
    RK_LOSS_LAST_COLUMN = RK_LOSS_COLUMN_COUNT - 1, /* the ids' columns follow */
    RK_LOSS_ID_COLUMN_TABLE(RK_LOSS_COLUMN_ID)
#undef RK_LOSS_COLUMN_ID
        RK_LOSS_ALL_COLUMN_COUNT
} rk_loss_column_t;
#define RK_LOSS_BIT(column) (1u << (column))
const char *rk_loss_column_name(rk_loss_column_t column);

/* Columns, as RK_LOSS_BIT, of the loss that policy_loss.loss_mode names and of the terms whose option is
 * true, in options of update_actor. */
uint32_t rk_policy_loss_columns(const struct rk_json *options);

RK_END_DECLS

#endif
