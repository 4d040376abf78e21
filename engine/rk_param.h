/* The parameter descriptor: the only description of a model's layout over a mesh.
 *
 * struct rk_param is one global row per parameter, equal on all ranks of the mesh, also on those that do not
 * hold it: collective loops over parameters run over the rows, and a rank without the parameter takes part
 * with no data. struct rk_placement is this rank's part of it. Loading, export, random initialisation,
 * gradient sums, buckets, norm, optimizer and checkpoints depend on these two only.
 *
 * A dense parameter is split over tp and replicated over dp and cp. An expert's is held by one rank of ep,
 * split over etp and replicated over edp. Both are held by one pipeline stage, or two when they are tied. All
 * functions are pure. */
#ifndef RK_PARAM_H
#define RK_PARAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_dtype.h"
#include "base/layout/rk_mesh.h"
#include "engine/rk_comm.h"

RK_BEGIN_DECLS

#define RK_PARAM_DIMS 2

/* Gradient groups: rows of rk_grad_groups. The trained parameters of a group are contiguous in the flat
 * buffers and have their own buckets; their gradients are summed over the group's ranks, over which their
 * optimizer state is sharded. The norm of a step is over all groups. Gradients are sums with global
 * denominators: no group divides by its number of ranks. */
typedef enum rk_grad_group {
    RK_GRAD_DENSE,  /* parameters that are on every replica */
    RK_GRAD_EXPERT, /* experts: different parameters on the ranks of ep */
    RK_GRAD_GROUPS
} rk_grad_group_t;

struct rk_grad_group_row {
    rk_mesh_group_kind_t ranks;
    uint32_t axes; /* RK_AXIS_BIT of the axes in which the ranks of a group differ */
};

extern const struct rk_grad_group_row rk_grad_groups[RK_GRAD_GROUPS];
/* Number of ranks of a group. */
int32_t rk_grad_group_size(rk_grad_group_t group, const struct rk_mesh *mesh);

enum rk_param_flags {
    RK_PARAM_NO_DECAY = 1u << 0, /* no weight decay: biases and 1-D parameters */
    RK_PARAM_FROZEN = 1u << 1,   /* no update, no weight decay, not in the gradient norm */
    /* Each copy of a part along the split axis has a different summand of its gradient; the gradient is the
     * sum over the copies (key-value heads with tp > num_kv_heads: each copy has other query heads; norms
     * with sequence parallelism: each has other tokens). */
    RK_PARAM_PARTIAL_GRAD = 1u << 2,
    RK_PARAM_OPTIONAL = 1u << 4, /* Hugging Face files may lack it: a new head */
    RK_PARAM_FUSED = 1u << 3,    /* directly after the previous row in the flat buffers, without a gap */
    RK_PARAM_ROUTER = 1u << 5,   /* of a router, or of the gate of a shared expert */
    /* A vector that files have in fp32: in the flat buffers it has RK_PARAM_WIDE_PARTS runs, whose sum is the
     * value (engine/params/wide.c). */
    RK_PARAM_WIDE = 1u << 6,
    /* Frozen, as are all rows fused with it: placed behind the gradient groups, without gradient, master and
     * optimizer state. Set by rk_params_lay_out. */
    RK_PARAM_UNTRAINED = 1u << 7,
};

#define RK_PARAM_WIDE_PARTS 3

/* A tensor [count, rows, columns] of experts' matrices that files may have instead of separate parameters,
 * which are consecutive runs of its count * rows rows. */
struct rk_param_stack {
    char name[64]; /* "": none */
    int64_t count, rows;
    int64_t first_row; /* of the parameter */
};

/* Split over the ranks of `axis`: `dim` is split into num_parts equal parts, each held by axis_size /
 * num_parts consecutive ranks. */
struct rk_param_split {
    rk_axis_t axis;      /* RK_AXIS_TP; experts: RK_AXIS_ETP */
    int32_t dim;         /* 0, 1, or -1: not split, every rank holds all */
    int32_t num_parts;   /* divides the size of the axis; 1 when not split */
    int64_t size_padded; /* of `dim`: a multiple of num_parts; padding is zeros at the end */
};

struct rk_param {
    char name[96];                /* Hugging Face's: "model.layers.0.self_attn.q_proj.weight" */
    char alias[48];               /* second name in files, read if the first one is missing; or "" */
    struct rk_param_stack stack;  /* read when both names are missing */
    int32_t rank;                 /* 1 or 2 */
    int64_t shape[RK_PARAM_DIMS]; /* global, unpadded; shape[1] of a vector is 1 */
    uint32_t flags;               /* enum rk_param_flags */
    int32_t stage;                /* pipeline stage that owns it */
    int32_t shared_stage;         /* another stage that holds a copy (tied embeddings), or -1 */
    int32_t ep_rank;              /* rank of ep that holds it; -1: not an expert's */
    struct rk_param_split split;
    rk_mesh_group_kind_t grad_group; /* `ranks` of a row of rk_grad_groups */
};

/* The part of a parameter that one rank holds. */
struct rk_placement {
    bool is_held;    /* false: everything below is 0 */
    bool is_counted; /* of the copies outside grad_group, the one that norms count and whose optimizer state
                      * is saved */
    bool is_main;    /* of all copies, the one that files are written from: counted, first of grad_group */
    int32_t part;    /* of split.dim */
    int64_t local_shape[RK_PARAM_DIMS]; /* padding included */
    int64_t offset; /* in elements, in the flat buffers of parameters and gradients; set by the table's
                     * layout */
};

/* Elements [begin, begin + shape) of the global tensor. */
struct rk_param_box {
    int64_t begin[RK_PARAM_DIMS], shape[RK_PARAM_DIMS];
};

/* Its gradient group, a row of rk_grad_groups. */
rk_grad_group_t rk_param_grad_group(const struct rk_param *param);
/* Sets everything but the offset, which is 0, for the rank at `coords`. */
void rk_param_place(struct rk_placement *out, const struct rk_param *param, const struct rk_mesh *mesh,
                    const struct rk_mesh_coords *coords);
/* Moves the coordinates of a rank to the rank of its replica that holds the parameter: the parameter's stage,
 * and for an expert its rank of ep. */
void rk_param_owner_coords(struct rk_mesh_coords *coords, const struct rk_param *param);
/* The local part without padding: the first shape[0] rows and shape[1] columns of local_shape. A
 * rank that has only padding, or does not hold the parameter, has a shape with a 0. */
struct rk_param_box rk_param_get_box(const struct rk_param *param, const struct rk_placement *placement);
/* Number of ranks of the split axis that hold the same part. */
int32_t rk_param_num_copies(const struct rk_param *param, const struct rk_mesh *mesh);
/* The first rank that holds `part`: the rank of the split axis whose copy counts. */
int32_t rk_param_first_rank(const struct rk_param *param, const struct rk_mesh *mesh, int32_t part);

static inline int64_t rk_param_num_elements(const struct rk_param *param)
{
    return param->shape[0] * param->shape[1];
}

/* Number of elements of the parameter's tensor in files. */
static inline int64_t rk_param_num_values(const struct rk_param *param)
{
    return rk_param_num_elements(param) / (param->flags & RK_PARAM_WIDE ? RK_PARAM_WIDE_PARTS : 1);
}

static inline int64_t rk_placement_num_elements(const struct rk_placement *placement)
{
    return placement->local_shape[0] * placement->local_shape[1];
}

/* --- shards of the flat buffers over the ranks of a gradient group ---
 *
 * A group's range of the buffers is split into buckets, and every bucket into equal parts, one per rank. A
 * rank's parts, concatenated group by group, are its shard: the arrays of masters and optimizer state have
 * this order. A part may begin or end inside a parameter, and a parameter may span several buckets.
 */
struct rk_shard_map {
    int64_t begin;           /* start of the group in the flat buffers */
    int64_t shard_begin;     /* start of the group's part in the shard */
    int64_t num_elements;    /* of the group, with padding: a multiple of num_shards */
    int64_t bucket_elements; /* of all buckets but the last, which may be shorter; a multiple of num_shards */
    int32_t num_shards;      /* ranks of the group */
    int32_t index;           /* of the rank in the group */
};

/* A range of the flat buffers. The rank's part of it is [mine, mine + part), at `shard` in the shard's
 * arrays. */
struct rk_bucket {
    int64_t begin, count;
    int64_t mine, part, shard;
};

int64_t rk_shard_num_buckets(const struct rk_shard_map *map);
struct rk_bucket rk_shard_bucket_at(const struct rk_shard_map *map, int64_t i);

/* Elements [begin, begin + count) of the flat buffers, at `shard` in the shard's arrays. */
struct rk_shard_run {
    int64_t begin, count;
    int64_t shard;
    int64_t bucket; /* index of its bucket */
};
/* The next run of the shard within elements [begin, end) of the group, in ascending order; all zeros before
 * the first call. False when there is none. For a parameter: begin is its offset, and run->begin - begin the
 * first element of its local part, row-major. */
bool rk_shard_next_run(const struct rk_shard_map *map, int64_t begin, int64_t end, struct rk_shard_run *run);

/* The maps of all groups, which are adjacent. */
struct rk_shard_maps {
    struct rk_shard_map of[RK_GRAD_GROUPS];
};
/* The next run within elements of any groups. */
bool rk_shards_next_run(const struct rk_shard_maps *maps, int64_t begin, int64_t end,
                        struct rk_shard_run *run);

RK_END_DECLS

#endif
