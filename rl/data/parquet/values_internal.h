/* From the values of columns to JSON. */
#ifndef RK_PARQUET_VALUES_INTERNAL_H
#define RK_PARQUET_VALUES_INTERNAL_H

#include "rl/data/parquet/column_internal.h"

/* The value as JSON; rk_json_free it. NULL for NaN. *is_mended for NaN and for an integer beyond 64 bits,
 * which becomes a floating-point number. INVALID_ARGUMENT for a value without a JSON form. */
struct rk_status *rk_parquet_to_json(struct rk_json **out, const struct rk_parquet_node *leaf,
                                     const struct rk_parquet_cell *cell, bool *is_mended) RK_NODISCARD;

#endif
