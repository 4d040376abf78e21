/* The footer of a Parquet file: its tree of columns, and where the pages of each are. */
#ifndef RK_PARQUET_FOOTER_INTERNAL_H
#define RK_PARQUET_FOOTER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_array.h"
#include "base/rk_status.h"

/* Parquet's Type. */
typedef enum rk_parquet_type {
    RK_PARQUET_BOOLEAN,
    RK_PARQUET_INT32,
    RK_PARQUET_INT64,
    RK_PARQUET_INT96,
    RK_PARQUET_FLOAT,
    RK_PARQUET_DOUBLE,
    RK_PARQUET_BYTE_ARRAY,
    RK_PARQUET_FIXED,
    RK_PARQUET_TYPE_COUNT
} rk_parquet_type_t;

/* Meaning of the values, from LogicalType or ConvertedType, its older form. */
typedef enum rk_parquet_kind {
    RK_PARQUET_PLAIN,
    RK_PARQUET_TEXT, /* STRING, ENUM, JSON */
    RK_PARQUET_MAP,
    RK_PARQUET_LIST,
    RK_PARQUET_DECIMAL,
    RK_PARQUET_DATE,
    RK_PARQUET_TIME,
    RK_PARQUET_TIMESTAMP,
    RK_PARQUET_UNSIGNED,
    RK_PARQUET_HALF, /* FLOAT16 */
} rk_parquet_kind_t;

typedef enum rk_parquet_repetition {
    RK_PARQUET_REQUIRED,
    RK_PARQUET_OPTIONAL,
    RK_PARQUET_REPEATED,
} rk_parquet_repetition_t;

/* A column or a group of columns. */
struct rk_parquet_node {
    char *name;
    int64_t parent; /* -1: the root */
    int64_t num_children;
    int64_t end;  /* one past the last node below it; the nodes are in the order of the tree */
    int64_t leaf; /* index of the first leaf at or below it */
    bool is_leaf;
    rk_parquet_repetition_t repetition;
    int max_def, max_rep; /* levels of a value that is there */
    rk_parquet_type_t type;
    int64_t type_bytes; /* of FIXED */
    rk_parquet_kind_t kind;
    int scale;          /* of DECIMAL */
    int64_t per_second; /* of TIME and TIMESTAMP */
    bool is_utc;
};

/* The pages of one leaf in one row group. */
struct rk_parquet_chunk {
    int64_t offset, bytes, num_values;
    int codec;
};

struct rk_parquet_group {
    int64_t num_rows;
    int64_t first_chunk; /* one chunk per leaf */
};

struct rk_parquet_footer {
    RK_ARRAY(struct rk_parquet_node) nodes; /* nodes.items[0] is the root */
    RK_ARRAY(int64_t) leaves;               /* indices of nodes */
    RK_ARRAY(struct rk_parquet_chunk) chunks;
    RK_ARRAY(struct rk_parquet_group) groups;
};

/* Reads the footer of an open file. `footer` is zeroed, and valid for fini on failure too. */
struct rk_status *rk_parquet_footer_read(struct rk_parquet_footer *footer, int fd) RK_NODISCARD;
void rk_parquet_footer_fini(struct rk_parquet_footer *footer);
/* The names on the way to the node, without the names of lists: "extra_info.tags"; rk_free it. */
char *rk_parquet_path(const struct rk_parquet_footer *footer, int64_t node);
/* DATA_LOSS unless all bytes are there. */
struct rk_status *rk_parquet_pread(int fd, void *dst, int64_t bytes, int64_t offset) RK_NODISCARD;

#endif
