/* Private to engine/: building the parameter table and laying it out in the flat buffers.
 *
 * Parameters are declared in the order of the forward pass. The flat buffers hold the matrices in reverse
 * order, which is about the order in which gradients become complete, followed by the vectors, which are
 * small and have no weight decay: so the optimizer has few ranges to process. Gradient groups follow one
 * another, each in this order. Every allocation starts at a multiple of 64 elements, and the length of a
 * group is a multiple of lcm(n, 128), where n is the number of its ranks, so that each rank owns an equal
 * part. Parameters that are not trained (RK_PARAM_UNTRAINED) follow all others, in the same order. Parameters
 * and gradients have the same index map; the buffer of gradients ends where the untrained ones begin. The map
 * is equal on all ranks of the tp and dp groups, and for experts on all ranks with the same ep rank. */
#ifndef RK_ENGINE_PARAMS_H
#define RK_ENGINE_PARAMS_H

#include "engine/rk_model.h"

struct rk_param_table {
    struct rk_param *params;         /* the rows: global parameters */
    struct rk_placement *placements; /* this rank's part of each row */
    int64_t count, capacity;
    struct rk_mesh *mesh; /* owned */
    struct rk_mesh_coords coords;
    int32_t stage;        /* pipeline stage of the rows that are added next */
    bool splits_rows;     /* tp ranks split the rows of the residual stream: set before rows are added */
    int64_t num_elements; /* length of the flat buffer of parameters with padding; 0 until laid out */
    int64_t num_trained;  /* length of the flat buffer of gradients: the elements before it are trained */
    /* Ranges of the flat buffer, which follow one another: of the trained parameters of each gradient group,
     * and of the others. */
    struct rk_param_range {
        int64_t begin, num_elements;
    } groups[RK_GRAD_GROUPS], untrained[RK_GRAD_GROUPS];
};

/* A layer's declaration of a parameter. It is split over tp, or over etp if it belongs to an expert. */
struct rk_param_spec {
    int64_t rows, cols;  /* global shape; cols 0: a vector */
    int32_t split_dim;   /* 0, 1, or -1 when replicated */
    int32_t num_parts;   /* 0: one per rank */
    int64_t rows_padded; /* 0: rows; otherwise split_dim is 0 and zero rows pad to this number */
    uint32_t flags;      /* enum rk_param_flags; RK_PARAM_NO_DECAY is set for vectors */
    const char *alias;   /* second name in files, or NULL */
    struct {
        const char *name; /* NULL: none */
        int64_t count, rows, first_row;
    } stack;        /* struct rk_param_stack */
    bool sees_rows; /* a replicated parameter that is applied to rows of the residual stream */
    bool is_expert;
    int32_t ep_rank; /* of an expert's parameter: the ep rank that holds it */
};

/* Copies the mesh. `coords` are this rank's coordinates in it. */
struct rk_status *rk_params_init(struct rk_param_table *table, const struct rk_mesh *mesh,
                                 const struct rk_mesh_coords *coords) RK_NODISCARD;
/* Appends a row and returns its index. The caller has checked that the parts divide the split dimension. */
int64_t rk_params_add(struct rk_param_table *table, const struct rk_param_spec *spec, const char *name_fmt,
                      ...) RK_PRINTF(3, 4);
/* Marks that stage also holds a copy of row `i` (no effect if it is the row's own stage). */
void rk_params_share(struct rk_param_table *table, int64_t i, int32_t stage);
/* lcm(num_shards, 128): the lengths of a flat buffer and of its buckets are multiples of it. */
int64_t rk_params_align(int32_t num_shards);
/* Sets all offsets, and the ranges of the groups. RESOURCE_EXHAUSTED when the number of elements overflows.
 */
struct rk_status *rk_params_lay_out(struct rk_param_table *table) RK_NODISCARD;
void rk_params_fini(struct rk_param_table *table);
int64_t rk_params_find(const struct rk_param_table *table, const char *name); /* -1 when absent */
/* INVALID_ARGUMENT "`what`=SIZE is not divisible by tp=N", prefixed with the parameters' owner; axis: tp or
 * etp. */
struct rk_status *rk_params_check_divides(const struct rk_param_table *table, rk_axis_t axis,
                                          const char *what, int64_t size) RK_NODISCARD;

/* A rank's index in its group of each gradient group. */
struct rk_shard_places {
    int32_t size[RK_GRAD_GROUPS], rank[RK_GRAD_GROUPS];
};
/* Places of this rank of the mesh. */
struct rk_shard_places rk_shard_places_of(const struct rk_mesh_comms *mesh);
/* Cuts the flat buffers into buckets of about that many elements. 0: one bucket per gradient group with a
 * single rank, otherwise RK_BUCKET_ELEMENTS. */
struct rk_shard_maps rk_params_cut(const struct rk_param_table *table, const struct rk_shard_places *places,
                                   int64_t bucket_elements);
/* A map of the untrained parameters: which elements each rank of the groups writes to checkpoints. */
struct rk_shard_maps rk_params_cut_untrained(const struct rk_param_table *table,
                                             const struct rk_shard_places *places);
/* Elements of the shard over all groups. */
int64_t rk_params_shard_count(const struct rk_shard_maps *maps);

/* Elements [begin, begin + count) of a flat buffer. */
static inline rk_tensor_t rk_flat_view(void *buffer, rk_dtype_t dtype, int64_t begin, int64_t count)
{
    return rk_tensor_1d((char *)buffer + (size_t)begin * rk_dtype_bytes(dtype), dtype, count);
}

static inline const struct rk_param *rk_params_at(const struct rk_param_table *table, int64_t i)
{
    return &table->params[i];
}

static inline const struct rk_placement *rk_params_placement(const struct rk_param_table *table, int64_t i)
{
    return &table->placements[i];
}

static inline bool rk_params_is_trained(const struct rk_param_table *table, int64_t i)
{
    return !(table->params[i].flags & RK_PARAM_UNTRAINED);
}

/* The placement of row `i` on the rank of the owning stage that has the same coordinates otherwise. */
struct rk_placement rk_params_owner_placement(const struct rk_param_table *table, int64_t i);

/* The group of ranks that hold parts or copies of a parameter. */
static inline rk_mesh_group_kind_t rk_param_split_group(const struct rk_param *param)
{
    return param->split.axis == RK_AXIS_ETP ? RK_GROUP_ETP : RK_GROUP_TP;
}

static inline int32_t rk_params_split_size(const struct rk_param_table *table, int64_t i)
{
    return rk_mesh_axis_size(table->mesh, table->params[i].split.axis);
}

static inline int32_t rk_params_tp_size(const struct rk_param_table *table)
{
    return rk_mesh_axis_size(table->mesh, RK_AXIS_TP);
}

/* --- wide.c: parameters that files have in fp32 (RK_PARAM_WIDE) --- */

/* parts [RK_PARAM_WIDE_PARTS, count], each of which bf16 holds: their sum is the value, of fp32 exactly. */
void rk_param_wide_split(const double *values, int64_t count, double *parts);
void rk_param_wide_join(const void *parts, rk_dtype_t dtype, int64_t count, float *out);

#endif
