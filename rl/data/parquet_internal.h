/* Rows of a Parquet file, one after the other, with the memory of one page per column. */
#ifndef RK_PARQUET_INTERNAL_H
#define RK_PARQUET_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"

struct rk_parquet;

/* Takes ownership of `fd`, on failure too. DATA_LOSS for a damaged file, INVALID_ARGUMENT for two columns of
 * one name, UNIMPLEMENTED for encryption. */
struct rk_status *rk_parquet_open(struct rk_parquet **out, int fd) RK_NODISCARD;
void rk_parquet_close(struct rk_parquet *file); /* NULL is a no-op */
/* The next row as an object without the members that are null; *out is NULL after the last. Lists are arrays,
 * maps arrays of [key, value], decimals, dates and times text (docs/data.md). INVALID_ARGUMENT "COLUMN: ..."
 * for a value that has no JSON form. */
struct rk_status *rk_parquet_next(struct rk_parquet *file, struct rk_json **out) RK_NODISCARD;
int64_t rk_parquet_row(
    const struct rk_parquet *file); /* that the last call of next returned or failed on; from 0 */
/* "row N: COLUMN: what" of the first value that was NaN or an integer beyond 64 bits, NULL without one, and
 * the number of rows with such values. */
const char *rk_parquet_mended(const struct rk_parquet *file, int64_t *count);

#endif
