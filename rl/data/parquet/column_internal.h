/* One leaf column of a row group: its values with their levels, page by page. */
#ifndef RK_PARQUET_COLUMN_INTERNAL_H
#define RK_PARQUET_COLUMN_INTERNAL_H

#include "base/rk_json.h"
#include "rl/data/parquet/decode_internal.h"

#define RK_PARQUET_PAGE_BYTES_MAX (256 << 20)

/* Page text that grows. */
struct rk_parquet_buffer {
    uint8_t *data;
    size_t capacity;
};

struct rk_parquet_column {
    int fd;
    const struct rk_parquet_node *leaf;
    int codec;
    int64_t at, end;    /* of the chunk's bytes in the file */
    int64_t chunk_left; /* values in pages that are not read yet */
    int64_t page_left;  /* values of the page, nulls included */
    struct rk_parquet_buffer stored, page, dictionary_page;
    struct rk_parquet_runs reps, defs;
    struct rk_parquet_values values;
    RK_ARRAY(struct rk_parquet_cell) dictionary;
    struct rk_json **shared; /* [dictionary.count]: values made so far, which rows share */
    /* The current value. */
    bool is_end;
    int rep, def;
};

/* Zero-initialise `column` once; begin starts a row group, and reads the first value. */
struct rk_status *rk_parquet_column_begin(struct rk_parquet_column *column, int fd,
                                          const struct rk_parquet_node *leaf,
                                          const struct rk_parquet_chunk *chunk) RK_NODISCARD;
void rk_parquet_column_fini(struct rk_parquet_column *column);
/* The levels of the next value: column->rep, def and is_end. Call after the current one was taken. */
struct rk_status *rk_parquet_column_advance(struct rk_parquet_column *column) RK_NODISCARD;
/* The current value, whose def is the leaf's max_def. *shared is where rows share it, or NULL. */
struct rk_status *rk_parquet_column_value(struct rk_parquet_column *column, struct rk_parquet_cell *cell,
                                          struct rk_json ***shared) RK_NODISCARD;

/* --- compress.c --- */
/* Expands a page of exactly `out_bytes` bytes. `codec` is Parquet's CompressionCodec. */
struct rk_status *rk_parquet_expand(int codec, const uint8_t *in, size_t bytes, uint8_t *out,
                                    size_t out_bytes) RK_NODISCARD;
/* CRC-32 of a page, as gzip's. */
uint32_t rk_parquet_crc(const uint8_t *data, size_t bytes);

#endif
