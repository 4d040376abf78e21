#include "base/config/rk_losses.h"

#include <string.h>

#include "base/rk_assert.h"

const char *rk_loss_column_name(rk_loss_column_t column)
{
    static const char *const names[RK_LOSS_ALL_COLUMN_COUNT] = {
#define NAME(id, name) [RK_LOSS_##id] = name,
        RK_LOSS_COLUMN_TABLE(NAME) RK_LOSS_ID_COLUMN_TABLE(NAME)
#undef NAME
    };

    RK_ASSERT(column < RK_LOSS_ALL_COLUMN_COUNT);
    return names[column];
}

uint32_t rk_policy_loss_columns(const struct rk_json *options)
{
    static const struct {
        const char *mode, *option;
        uint32_t columns;
    } rows[] = {
#define LOSS(id, kind, name, columns, optional)   {name, NULL, (columns) | (optional)},
#define TERM(id, kind, option, columns, optional) {NULL, option, (columns) | (optional)},
        RK_POLICY_LOSS_TABLE(LOSS) RK_POLICY_TERM_TABLE(TERM)
#undef LOSS
#undef TERM
    };
    const char *mode = rk_json_as_string(rk_json_find(options, "policy_loss.loss_mode"), "");
    uint32_t columns = 0;

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (rows[i].mode ? strcmp(rows[i].mode, mode) == 0
                         : rows[i].option && rk_json_as_bool(rk_json_find(options, rows[i].option), false))
            columns |= rows[i].columns;
    }
    return columns;
}
