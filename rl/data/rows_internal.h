/* Rows of a data file, one after the other. */
#ifndef RK_ROWS_INTERNAL_H
#define RK_ROWS_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"
#include "rl/rk_dataset.h"

#define RK_ROW_BYTES_MAX (16 << 20)

/* Takes ownership of `row`, on failure too. Sets *is_enough when no more rows are needed. `place` is valid
 * during the call. */
typedef struct rk_status *(*rk_row_fn_t)(void *user, struct rk_json *row, const struct rk_row_place *place,
                                         bool *is_enough);

/* JSON Lines (one object a line, empty lines are skipped), one JSON array of objects, or Parquet; detected
 * from the content. Errors, also of on_row, begin with the place of the row. Warns of rows with NaN and with
 * integers beyond 64 bits, which become null and floating-point numbers. */
struct rk_status *rk_rows_read(const char *path, rk_row_fn_t on_row, void *user) RK_NODISCARD;

#endif
