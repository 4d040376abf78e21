/* Private to engine/: building the parameter table and laying it out in the flat buffers.
 *
 * Parameters are declared in the order of the forward pass. The flat buffers hold the matrices in the reverse
 * order, which is about the order in which gradients become complete, and behind them the vectors, which are
 * small and have no weight decay: the optimizer then has few ranges to go through. All of this for one
 * gradient group after the other. Every allocation starts at a multiple of 64 elements, and what a group has
 * is a multiple of lcm(n, 128), where n is the number of its ranks, so that each of them owns an equal part.
 * Parameters and gradients have the same index map, the same on all ranks of the tp and dp groups, and for
 * experts on all ranks with the same place in ep. */
#ifndef RK_PARAMS_INTERNAL_H
#define RK_PARAMS_INTERNAL_H

#include "engine/rk_model.h"

struct rk_param_table {
    struct rk_param *params;         /* the global rows */
    struct rk_placement *placements; /* of this rank, one a row */
    int64_t count, capacity;
    struct rk_mesh *mesh; /* owned */
    struct rk_mesh_coords coords;
    int32_t stage;        /* pipeline stage of the rows that are added next */
    rk_dtype_t dtype;     /* of the flat buffer of parameters */
    bool splits_rows;     /* tp ranks share the rows of the residual stream: set before rows are added */
    int64_t num_elements; /* of a flat buffer, padding included; 0 until laid out */
    struct rk_param_range {
        int64_t begin, num_elements;
    } groups[RK_GRAD_GROUPS]; /* of it; they follow one another */
};

/* What a layer says about a parameter. It is split over tp, or over etp when it is an expert's. */
struct rk_param_spec {
    int64_t rows, cols;  /* global shape; cols 0: a vector */
    int32_t split_dim;   /* 0, 1, or -1 when replicated */
    int32_t num_parts;   /* 0: one for each rank */
    int64_t rows_padded; /* 0: rows; else split_dim is 0 and zero rows are added up to this many */
    uint32_t flags;      /* enum rk_param_flags; vectors get RK_PARAM_NO_DECAY by themselves */
    const char *alias;   /* second name in files, or NULL */
    struct {
        const char *name; /* NULL: none */
        int64_t count, rows, first_row;
    } stack;        /* struct rk_param_stack */
    bool sees_rows; /* replicated, and applied to rows of the residual stream */
    bool is_expert;
    int32_t ep_rank; /* of an expert's: the rank of ep that holds it */
};

/* Copies the mesh. `coords` is this rank's place in it. */
struct rk_status *rk_params_init(struct rk_param_table *table, const struct rk_mesh *mesh,
                                 const struct rk_mesh_coords *coords, rk_dtype_t dtype) RK_NODISCARD;
/* Appends a row and returns its index. The caller has checked that the parts divide the split dimension. */
int64_t rk_params_add(struct rk_param_table *table, const struct rk_param_spec *spec, const char *name_fmt,
                      ...) RK_PRINTF(3, 4);
/* Another stage holds a copy of row `i` as well (none when it is the row's own stage). */
void rk_params_share(struct rk_param_table *table, int64_t i, int32_t stage);
/* lcm(num_shards, 128): what the length of a flat buffer and of its buckets is a multiple of. */
int64_t rk_params_align(int32_t num_shards);
/* Sets all offsets, and the ranges of the groups. RESOURCE_EXHAUSTED when the number of elements overflows.
 */
struct rk_status *rk_params_lay_out(struct rk_param_table *table) RK_NODISCARD;
void rk_params_fini(struct rk_param_table *table);
int64_t rk_params_find(const struct rk_param_table *table, const char *name); /* -1 when absent */
/* INVALID_ARGUMENT "`what`=SIZE is not divisible by tp=N" with the parameters' owner in the message. */
struct rk_status *rk_params_check_divides(const struct rk_param_table *table, const char *what,
                                          int64_t size) RK_NODISCARD;

/* A rank's place in its group of each gradient group. */
struct rk_shard_places {
    int32_t size[RK_GRAD_GROUPS], rank[RK_GRAD_GROUPS];
};
/* Of a rank of that mesh. */
struct rk_shard_places rk_shard_places_of(const struct rk_mesh_comms *mesh);
/* How the flat buffers are cut, into buckets of about that many elements: 0, one bucket a group where its
 * ranks are one, else RK_BUCKET_ELEMENTS. */
struct rk_shard_maps rk_params_cut(const struct rk_param_table *table, const struct rk_shard_places *places,
                                   int64_t bucket_elements);
/* Of the shard of all groups. */
int64_t rk_params_shard_count(const struct rk_shard_maps *maps);

static inline const struct rk_param *rk_params_at(const struct rk_param_table *table, int64_t i)
{
    return &table->params[i];
}

static inline const struct rk_placement *rk_params_placement(const struct rk_param_table *table, int64_t i)
{
    return &table->placements[i];
}

/* What the rank of the owning stage holds of row `i` that stands elsewhere as this one does. */
struct rk_placement rk_params_owner_placement(const struct rk_param_table *table, int64_t i);

/* Of the ranks that hold parts or copies of a parameter. */
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

#endif
