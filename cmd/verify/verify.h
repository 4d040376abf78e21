/* Comparison of two layouts (rankctl verify-layout): their checkpoints read as complete tensors,
 * differences, verdicts, and probable causes. */
#ifndef RK_CMD_VERIFY_H
#define RK_CMD_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_array.h"
#include "base/rk_json.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_status.h"
#include "base/rk_str.h"

/* --- the tensors of a checkpoint's part, assembled from its shards (gathered.c) --- */

struct rk_gathered;

struct rk_gathered_tensor {
    const char *name;
    int64_t rows, cols; /* of the whole tensor; a vector has one column */
    bool is_vector;
};

/* Opens the shards that the manifest in `part_dir` lists. DATA_LOSS, reason CHECKPOINT_DAMAGED, names file
 * and tensor. */
struct rk_status *rk_gathered_open(struct rk_gathered **out, const char *part_dir) RK_NODISCARD;
void rk_gathered_close(struct rk_gathered *gathered); /* NULL is a no-op */
int32_t rk_gathered_num_shards(const struct rk_gathered *gathered);
int64_t rk_gathered_count(const struct rk_gathered *gathered);
const struct rk_gathered_tensor *rk_gathered_at(const struct rk_gathered *gathered, int64_t i); /* by name */
/* NULL when absent. */
const struct rk_gathered_tensor *rk_gathered_find(const struct rk_gathered *gathered, const char *name);
/* Rows [begin, begin + count) of the tensor; owners: the shard that each element came from. Both have room
 * for count * cols elements. DATA_LOSS (CHECKPOINT_DAMAGED) for elements that are in no shard or in two. */
struct rk_status *rk_gathered_read(const struct rk_gathered *gathered,
                                   const struct rk_gathered_tensor *tensor, int64_t begin, int64_t count,
                                   double *out, int32_t *owners) RK_NODISCARD;

/* --- differences (difference.c) --- */

/* Difference between numbers and the expected ones, accumulated piece by piece. Zero-initialise. */
struct rk_difference {
    int64_t count;
    double error_max, expected_max;         /* of absolute values */
    double error_squares, expected_squares; /* sums */
    double product;                         /* sum of actual * expected */
    int64_t worst;                          /* element of error_max */
    bool has_nan;                           /* in either */
};

void rk_difference_add(struct rk_difference *difference, const double *actual, const double *expected,
                       int64_t count);

/* How differences are judged. float32: the largest difference, relative to the largest expected number of the
 * tensor. bfloat16, where rounding is large and has no sign: the mean square, relative to the mean square of
 * the expected numbers. */
struct rk_verify_measure {
    bool by_mean_square;
    double tolerance;
};

/* --- the compared rows (rows.c) --- */

typedef enum rk_verify_kind {
    RK_VERIFY_OUTPUT, /* of a forward pass: all tokens of the batch */
    RK_VERIFY_METRIC, /* of an update: one number */
    RK_VERIFY_GRADIENT,
    RK_VERIFY_PARAMETER, /* after the step */
    RK_VERIFY_KIND_COUNT
} rk_verify_kind_t;
const char *rk_verify_kind_name(rk_verify_kind_t kind); /* "output", "metric", "gradient", "parameter" */

struct rk_verify_row {
    rk_verify_kind_t kind;
    const char *role; /* static */
    char *name;       /* owned */
    bool is_vector;   /* of gradients and parameters */
    struct rk_difference difference;
    double *shard_errors; /* owned; of gradients and parameters: largest error in each shard */
    /* Set by rk_verify_judge. */
    double relative;    /* largest error, in parts of `scale` */
    double mean_square; /* normalised */
    double scale;
    bool agrees;
};

struct rk_verify_rows {
    RK_ARRAY(struct rk_verify_row) items;
    int32_t num_shards; /* of shard_errors */
};

void rk_verify_rows_fini(struct rk_verify_rows *rows);
/* A row of `count` numbers; copies the name. */
struct rk_verify_row *rk_verify_rows_add(struct rk_verify_rows *rows, rk_verify_kind_t kind, const char *role,
                                         const char *name);
/* The verdicts of all rows. */
void rk_verify_judge(struct rk_verify_rows *rows, const struct rk_verify_measure *measure);
/* Among the rows that disagree, the first one (in the order of a step, tensors before metrics) and the one
 * with the largest error; NULL: all agree. */
const struct rk_verify_row *rk_verify_first(const struct rk_verify_rows *rows);
const struct rk_verify_row *rk_verify_worst(const struct rk_verify_rows *rows,
                                            const struct rk_verify_measure *measure);
/* Name of the measure. */
double rk_verify_error(const struct rk_verify_row *row, const struct rk_verify_measure *measure);

/* --- checkpoints of two layouts (compare.c) --- */

/* The first step of AdamW, whose moments come from one gradient: it moves a parameter by lr * g / (|g| +
 * eps). For a gradient near 0 the result depends on its last bits, so the parameters are compared as if both
 * gradients were equal: the effect of the gradients' difference on the step is subtracted. */
struct rk_verify_step {
    double lr, eps;
    double actual_scale, expected_scale; /* of clipping */
};
/* Adds rows of the gradients and the parameters of a role's part, in the order of the model's layers.
 * FAILED_PRECONDITION when all gradients are 0: nothing would be compared. INTERNAL for a tensor that one
 * side lacks. */
struct rk_status *rk_verify_compare(struct rk_verify_rows *rows, const char *role,
                                    const struct rk_gathered *actual, const struct rk_gathered *expected,
                                    const struct rk_verify_step *step) RK_NODISCARD;

/* --- the cause (cause.c) --- */

/* The properties of the role's layout on which causes depend. */
struct rk_verify_layout {
    const struct rk_mesh *mesh;
    bool sequence_parallel;
    bool is_tied;         /* embedding and head are one weight */
    int64_t num_kv_heads; /* 0: not known */
};

/* Appends the probable cause of the role's differences, one or two sentences; nothing when it is unknown.
 * Returns the name of the parallelism ("sequence_parallel", "pipeline_parallel", ...), or NULL. */
const char *rk_verify_find_cause(struct rk_str *out, const struct rk_verify_rows *rows, const char *role,
                                 const struct rk_verify_layout *layout,
                                 const struct rk_verify_measure *measure);

#endif
