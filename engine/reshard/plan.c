/* The plan: for every move the tensor, box, source rank, destination rank and round. Every rank computes the
 * whole plan, because the moves of one rank depend on those of all others, and stores its own moves. Entry
 * point: rk_reshard_plan_create. */
#include "engine/rk_reshard.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* A rank of one side, and its part of the tensor that is being planned. */
struct holder {
    int32_t rank; /* rank in the world */
    struct rk_mesh_coords coords;
    bool is_held, is_counted;
    int32_t part, copy; /* copy: number of lower ranks that hold the same part */
    struct rk_param_box box;
};

struct side {
    const struct rk_reshard_side *desc;
    struct holder *holders; /* [num_holders], ascending ranks */
    int32_t num_holders;
    /* For the tensor that is being planned: by_part[part_begin[p]] to by_part[part_begin[p + 1] - 1] are the
     * holders of part p, as indices of holders. */
    int32_t *by_part, *part_begin; /* [num_holders], [num_holders + 1] */
    int32_t num_parts;
};

/* Traffic assigned to a rank of the world so far. */
struct load {
    uint64_t sent_bytes;                /* in the whole plan */
    int64_t round_sent, round_received; /* in the current round */
};

struct planner {
    const struct rk_reshard_desc *desc;
    struct side source, destination;
    struct load *loads; /* [world size] */
    int32_t round;
    struct rk_reshard_plan *plan;
    int64_t capacity; /* of plan->moves */
};

static void side_init(struct side *side, const struct rk_reshard_side *desc)
{
    size_t num_ranks = (size_t)rk_mesh_num_ranks(desc->mesh);

    side->desc = desc;
    side->holders = rk_calloc(num_ranks, sizeof(*side->holders));
    side->by_part = rk_calloc(num_ranks, sizeof(*side->by_part));
    side->part_begin = rk_calloc(num_ranks + 1, sizeof(*side->part_begin));
    for (int32_t rank = 0; rank < rk_mesh_world_size(desc->mesh); rank++) {
        struct rk_mesh_coords coords;

        if (rk_mesh_find_coords(desc->mesh, rank, &coords))
            side->holders[side->num_holders++] = (struct holder){.rank = rank, .coords = coords};
    }
}

static void side_fini(struct side *side)
{
    rk_free(side->holders);
    rk_free(side->by_part);
    rk_free(side->part_begin);
}

static void place_holder(struct holder *holder, const struct rk_param *param, const struct rk_mesh *mesh)
{
    struct rk_placement placement;

    rk_param_place(&placement, param, mesh, &holder->coords);
    holder->is_held = placement.is_held;
    if (!placement.is_held)
        return;
    holder->is_counted = placement.is_main;
    holder->part = placement.part;
    holder->box = rk_param_get_box(param, &placement);
}

static void side_place(struct side *side, int64_t row)
{
    const struct rk_param *param = &side->desc->params[row];

    side->num_parts = param->split.num_parts;
    RK_ASSERT(side->num_parts <= side->num_holders);
    for (int32_t part = 0; part <= side->num_parts; part++)
        side->part_begin[part] = 0;
    for (int32_t i = 0; i < side->num_holders; i++) {
        struct holder *holder = &side->holders[i];

        place_holder(holder, param, side->desc->mesh);
        if (holder->is_held)
            holder->copy = side->part_begin[holder->part + 1]++;
    }
    for (int32_t part = 0; part < side->num_parts; part++)
        side->part_begin[part + 1] += side->part_begin[part];
    for (int32_t i = 0; i < side->num_holders; i++) {
        const struct holder *holder = &side->holders[i];

        if (holder->is_held)
            side->by_part[side->part_begin[holder->part] + holder->copy] = i;
    }
}

static struct holder *side_find(const struct side *side, int32_t rank)
{
    for (int32_t i = 0; i < side->num_holders; i++) {
        if (side->holders[i].rank == rank && side->holders[i].is_held)
            return &side->holders[i];
    }
    return NULL;
}

/* --- matching tables --- */

static int64_t find_row(const struct rk_reshard_side *side, int64_t likely, const char *name)
{
    if (likely < side->num_params && strcmp(side->params[likely].name, name) == 0)
        return likely;
    for (int64_t i = 0; i < side->num_params; i++) {
        if (strcmp(side->params[i].name, name) == 0)
            return i;
    }
    return -1;
}

static struct rk_status *match_row(const struct rk_reshard_desc *desc, int64_t row, int64_t *source_row)
{
    const struct rk_param *param = &desc->destination.params[row], *source;

    *source_row = find_row(&desc->source, row, param->name);
    if (*source_row < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "tensor '%s' of the destination is missing from the source",
                       param->name);
    source = &desc->source.params[*source_row];
    if (source->shape[0] == param->shape[0] && source->shape[1] == param->shape[1])
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   "tensor '%s' is [%lld, %lld] in the source and [%lld, %lld] in the destination",
                   param->name, (long long)source->shape[0], (long long)source->shape[1],
                   (long long)param->shape[0], (long long)param->shape[1]);
}

static struct rk_status *check_source_rows(const struct rk_reshard_desc *desc)
{
    for (int64_t i = 0; i < desc->source.num_params; i++) {
        const char *name = desc->source.params[i].name;

        if (find_row(&desc->destination, i, name) < 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, "tensor '%s' of the source is missing from the destination",
                           name);
    }
    return NULL;
}

/* --- moves --- */

static int64_t box_elements(const struct rk_param_box *box)
{
    return box->shape[0] * box->shape[1];
}

/* False when they do not intersect. */
static bool intersect(struct rk_param_box *out, const struct rk_param_box *a, const struct rk_param_box *b)
{
    for (int32_t dim = 0; dim < RK_PARAM_DIMS; dim++) {
        int64_t end = RK_MIN(a->begin[dim] + a->shape[dim], b->begin[dim] + b->shape[dim]);

        out->begin[dim] = RK_MAX(a->begin[dim], b->begin[dim]);
        out->shape[dim] = RK_MAX(end - out->begin[dim], 0);
    }
    return box_elements(out) > 0;
}

/* FNV-1a over the eight bytes. */
static void hash_value(uint64_t *hash, int64_t value)
{
    for (int i = 0; i < 8; i++)
        *hash = (*hash ^ ((uint64_t)value >> (8 * i) & 0xff)) * 0x100000001b3u;
}

static void hash_move(uint64_t *hash, const struct rk_reshard_move *move)
{
    hash_value(hash, move->param);
    hash_value(hash, move->source);
    hash_value(hash, move->destination);
    hash_value(hash, move->round);
    for (int32_t dim = 0; dim < RK_PARAM_DIMS; dim++) {
        hash_value(hash, move->box.begin[dim]);
        hash_value(hash, move->box.shape[dim]);
    }
}

static void append(struct planner *planner, const struct rk_reshard_move *move)
{
    struct rk_reshard_plan *plan = planner->plan;

    RK_ASSERT(box_elements(&move->box) > 0);
    hash_move(&plan->hash, move);
    if (move->source != planner->desc->rank && move->destination != planner->desc->rank)
        return;
    if (plan->num_moves == planner->capacity) {
        planner->capacity = RK_MAX(64, 2 * planner->capacity);
        plan->moves = rk_realloc(plan->moves, (size_t)planner->capacity * sizeof(*plan->moves));
    }
    plan->moves[plan->num_moves++] = *move;
}

static void begin_round(struct planner *planner)
{
    int32_t world_size = rk_mesh_world_size(planner->desc->destination.mesh);

    for (int32_t rank = 0; rank < world_size; rank++)
        planner->loads[rank].round_sent = planner->loads[rank].round_received = 0;
    planner->round++;
}

/* Adds one move of at most a bucket to this round or the next. */
static void send(struct planner *planner, struct rk_reshard_move *move)
{
    struct rk_reshard_plan *plan = planner->plan;
    struct load *source = &planner->loads[move->source], *destination = &planner->loads[move->destination];
    int64_t bytes = box_elements(&move->box) * (int64_t)planner->desc->elem_bytes;

    RK_ASSERT(bytes <= planner->desc->bucket_bytes);
    if (source->round_sent + bytes > planner->desc->bucket_bytes ||
        destination->round_received + bytes > planner->desc->bucket_bytes)
        begin_round(planner);
    move->round = planner->round;
    source->round_sent += bytes;
    destination->round_received += bytes;
    plan->moved_bytes += (uint64_t)bytes;
    plan->num_rounds = planner->round + 1;
    plan->send_bytes_max = RK_MAX(plan->send_bytes_max, source->round_sent);
    plan->recv_bytes_max = RK_MAX(plan->recv_bytes_max, destination->round_received);
    if (move->source == planner->desc->rank)
        plan->mine.sent_bytes += (uint64_t)bytes;
    if (move->destination == planner->desc->rank)
        plan->mine.received_bytes += (uint64_t)bytes;
    append(planner, move);
}

/* Splits a box larger than a bucket into several moves: runs of whole rows, or of a row's elements. */
static void send_in_pieces(struct planner *planner, const struct rk_reshard_move *whole)
{
    int64_t limit = planner->desc->bucket_bytes / (int64_t)planner->desc->elem_bytes;
    int64_t cols = RK_MIN(whole->box.shape[1], limit), rows = RK_MAX(limit / cols, 1);

    for (int64_t r = 0; r < whole->box.shape[0]; r += rows) {
        for (int64_t c = 0; c < whole->box.shape[1]; c += cols) {
            struct rk_reshard_move piece = *whole;

            piece.box = (struct rk_param_box){
                .begin = {whole->box.begin[0] + r, whole->box.begin[1] + c},
                .shape = {RK_MIN(rows, whole->box.shape[0] - r), RK_MIN(cols, whole->box.shape[1] - c)}};
            send(planner, &piece);
        }
    }
}

static void move_box(struct planner *planner, struct rk_reshard_move *move)
{
    uint64_t bytes = (uint64_t)box_elements(&move->box) * planner->desc->elem_bytes;

    if (move->source != move->destination) {
        planner->loads[move->source].sent_bytes += bytes;
        send_in_pieces(planner, move);
        return;
    }
    move->round = -1;
    if (move->source == planner->desc->rank)
        planner->plan->mine.copied_bytes += bytes;
    append(planner, move);
}

/* Chooses which of the ranks that hold the part, entries [begin, end) of by_part, sends it to `rank`. */
static int32_t choose_source(const struct planner *planner, int32_t begin, int32_t end, int32_t rank)
{
    const struct side *source = &planner->source;
    int32_t best = source->holders[source->by_part[begin]].rank;

    for (int32_t i = begin; i < end; i++) {
        int32_t candidate = source->holders[source->by_part[i]].rank;

        if (candidate == rank)
            return rank;
        if (planner->loads[candidate].sent_bytes < planner->loads[best].sent_bytes)
            best = candidate;
    }
    return best;
}

/* Plans all moves of the tensor to `destination`. */
static void plan_destination(struct planner *planner, int64_t source_row, int64_t row,
                             const struct holder *destination)
{
    const struct side *source = &planner->source;

    for (int32_t part = 0; part < source->num_parts; part++) {
        int32_t begin = source->part_begin[part], end = source->part_begin[part + 1];
        struct rk_reshard_move move = {
            .source_param = source_row, .param = row, .destination = destination->rank};

        if (begin == end ||
            !intersect(&move.box, &source->holders[source->by_part[begin]].box, &destination->box))
            continue;
        move.source = choose_source(planner, begin, end, destination->rank);
        move_box(planner, &move);
    }
}

static struct rk_status *plan_row(struct planner *planner, int64_t row)
{
    struct rk_reshard_plan *plan = planner->plan;
    struct rk_reshard_part *part = &plan->parts[row];
    const struct holder *mine;

    RK_TRY(match_row(planner->desc, row, &part->source_param));
    side_place(&planner->source, part->source_param);
    side_place(&planner->destination, row);
    for (int32_t i = 0; i < planner->destination.num_holders; i++) {
        const struct holder *holder = &planner->destination.holders[i];

        if (!holder->is_held)
            continue;
        part->num_copies = RK_MAX(part->num_copies, holder->copy + 1);
        plan_destination(planner, part->source_param, row, holder);
    }
    plan->num_copies = RK_MAX(plan->num_copies, part->num_copies);
    mine = side_find(&planner->source, planner->desc->rank);
    part->is_counted = mine && mine->is_counted;
    mine = side_find(&planner->destination, planner->desc->rank);
    part->copy = mine ? mine->copy : -1;
    for (const char *name = planner->desc->destination.params[row].name; *name; name++)
        hash_value(&plan->hash, *name);
    return NULL;
}

static struct rk_status *plan_all(struct planner *planner)
{
    RK_TRY(check_source_rows(planner->desc));
    for (int64_t row = 0; row < planner->desc->destination.num_params; row++)
        RK_TRY(plan_row(planner, row));
    return NULL;
}

struct rk_status *rk_reshard_plan_create(struct rk_reshard_plan **out, const struct rk_reshard_desc *desc)
{
    struct planner planner = {.desc = desc};
    struct rk_reshard_plan *plan = planner.plan = rk_calloc(1, sizeof(*plan));
    int32_t world_size = rk_mesh_world_size(desc->destination.mesh);
    struct rk_status *st;

    RK_ASSERT(rk_mesh_world_size(desc->source.mesh) == world_size);
    RK_ASSERT(desc->rank >= 0);
    RK_ASSERT(desc->rank < world_size);
    RK_ASSERT(desc->bucket_bytes >= (int64_t)desc->elem_bytes);
    *out = NULL;
    plan->hash = 0xcbf29ce484222325u;
    plan->num_parts = desc->destination.num_params;
    plan->parts = rk_calloc((size_t)plan->num_parts, sizeof(*plan->parts));
    planner.loads = rk_calloc((size_t)world_size, sizeof(*planner.loads));
    side_init(&planner.source, &desc->source);
    side_init(&planner.destination, &desc->destination);
    st = plan_all(&planner);
    side_fini(&planner.source);
    side_fini(&planner.destination);
    rk_free(planner.loads);
    if (st) {
        rk_reshard_plan_destroy(plan);
        return RK_WRAP(st, "resharding from mesh %s to %s", rk_mesh_text(desc->source.mesh),
                       rk_mesh_text(desc->destination.mesh));
    }
    *out = plan;
    return NULL;
}

void rk_reshard_plan_destroy(struct rk_reshard_plan *plan)
{
    if (!plan)
        return;
    rk_free(plan->moves);
    rk_free(plan->parts);
    rk_free(plan);
}
