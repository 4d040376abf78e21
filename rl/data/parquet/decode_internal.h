/* Decoders of Parquet's encodings. Each yields one value after the other, so that no page is expanded in
 * memory. */
#ifndef RK_PARQUET_DECODE_INTERNAL_H
#define RK_PARQUET_DECODE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_str.h"
#include "rl/data/parquet/footer_internal.h"

/* Parquet's Encoding. */
enum rk_parquet_encoding {
    RK_PARQUET_ENCODING_PLAIN = 0,
    RK_PARQUET_ENCODING_PLAIN_DICTIONARY = 2,
    RK_PARQUET_ENCODING_RLE = 3,
    RK_PARQUET_ENCODING_DELTA = 5,
    RK_PARQUET_ENCODING_DELTA_LENGTH = 6,
    RK_PARQUET_ENCODING_DELTA_BYTES = 7,
    RK_PARQUET_ENCODING_RLE_DICTIONARY = 8,
    RK_PARQUET_ENCODING_SPLIT = 9, /* BYTE_STREAM_SPLIT */
};

struct rk_parquet_span {
    const uint8_t *at, *end;
};

/* Runs of equal values and of bit-packed values. */
struct rk_parquet_runs {
    struct rk_parquet_span in;
    int width;     /* bits of a value, 0 to 32 */
    uint64_t left; /* of the run */
    bool is_packed;
    uint32_t value;      /* of a run of equal ones */
    const uint8_t *bits; /* of a packed run, and the position in it */
    uint64_t bit;
};

void rk_parquet_runs_init(struct rk_parquet_runs *runs, struct rk_parquet_span in, int width);
bool rk_parquet_runs_next(struct rk_parquet_runs *runs, uint32_t *value); /* false: the data is damaged */

/* DELTA_BINARY_PACKED */
struct rk_parquet_deltas {
    struct rk_parquet_span in; /* from `at` on: what follows the values read so far, in whole blocks */
    uint64_t per_miniblock, num_miniblocks, total, read;
    int64_t value, min_delta;
    const uint8_t *widths;
    uint64_t miniblock; /* of the block, and the position in it */
    const uint8_t *bits;
    uint64_t index;
};

/* A value of a page. */
struct rk_parquet_cell {
    const uint8_t *at; /* of BYTE_ARRAY and FIXED; valid until the next value */
    size_t bytes;
    int64_t integer;
    double real;
};

/* The values of a page. Zero-initialise; fini releases. */
struct rk_parquet_values {
    int encoding;
    const struct rk_parquet_node *leaf;
    struct rk_parquet_span in;
    uint64_t index;                    /* values read */
    struct rk_parquet_runs runs;       /* RLE, and indices of a dictionary */
    struct rk_parquet_deltas deltas;   /* DELTA; lengths of DELTA_LENGTH and suffixes */
    struct rk_parquet_deltas prefixes; /* DELTA_BYTES */
    struct rk_str last;                /* DELTA_BYTES: the value before */
};

/* `in` holds the values of the page. UNIMPLEMENTED for another encoding. Keeps values->last's memory. */
struct rk_status *rk_parquet_values_init(struct rk_parquet_values *values, const struct rk_parquet_node *leaf,
                                         int encoding, struct rk_parquet_span in) RK_NODISCARD;
void rk_parquet_values_fini(struct rk_parquet_values *values);
/* The next value; of a dictionary's indices `integer`. False: the data is damaged. */
bool rk_parquet_values_next(struct rk_parquet_values *values, struct rk_parquet_cell *cell);
bool rk_parquet_is_dictionary(int encoding);
uint64_t rk_parquet_little(const uint8_t *at, int bytes); /* an unsigned number, low byte first */

#endif
