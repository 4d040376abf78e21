/* The plan: for every move the tensor, box, source rank, destination rank and round. Every rank computes the
 * whole plan, because the moves of one rank depend on those of all others, and stores its own moves. Entry
 * point: rk_reshard_plan_create. */
#include "engine/rk_reshard.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* A rank of one side. */
struct holder {
    int32_t rank; /* in the world */
    struct rk_mesh_coords coords;
};

/* Holding: which ranks hold which part of a tensor. The tensors of a layer mostly have the same holding, and
 * so have the tensors of the experts of one rank: neighbouring rows share the lists below. */
struct holding {
    int32_t stage, shared_stage, ep_rank, num_parts;
    rk_axis_t axis;
};

/* A rank that holds a part, and the bytes that it sends in the plan so far. */
struct sender {
    uint64_t sent_bytes;
    int32_t rank;
};

struct side {
    const struct rk_reshard_side *desc;
    struct holder *holders; /* [num_holders], ascending ranks */
    int32_t num_holders;
    /* Lists of all tensors with this holding; num_parts is 0 before the first. */
    struct holding holding;
    int32_t *part_of; /* [world size] the part that a rank holds, -1: none */
    int32_t *held;    /* [num_held] ranks that hold a part, ascending */
    int32_t num_held;
    /* senders[part_begin[p]] to senders[part_begin[p + 1] - 1] are the ranks that hold part p: a heap, least
     * first. */
    struct sender *senders; /* [num_holders] */
    int32_t *part_begin;    /* [num_holders + 1] */
    /* Boxes of the tensor that is being planned. */
    struct rk_param_box *boxes; /* [num_holders] of parts that some rank holds */
};

/* Traffic assigned to a rank of the world so far. */
struct load {
    uint64_t sent_bytes;                /* in the whole plan */
    int32_t round;                      /* the last one with traffic of the rank */
    int64_t round_sent, round_received; /* in that round */
};

/* The box of a move to the ranks that hold a part of the destination, and the part of the source that it is
 * in. */
struct overlap {
    int32_t part, source_part;
    struct rk_param_box box;
};

struct planner {
    const struct rk_reshard_desc *desc;
    struct side source, destination;
    struct load *loads; /* [world size] */
    int32_t round;
    struct rk_reshard_plan *plan;
    int64_t capacity; /* of plan->moves */
    /* Overlaps of the tensor that is being planned, ascending by part, then by source_part: the overlaps of
     * part p begin at overlap_begin[p]. */
    struct overlap *overlaps;
    int64_t overlap_capacity;
    int64_t *overlap_begin; /* [destination's num_holders + 1] */
};

static void side_init(struct side *side, const struct rk_reshard_side *desc)
{
    size_t num_ranks = (size_t)rk_mesh_num_ranks(desc->mesh);
    int32_t world_size = rk_mesh_world_size(desc->mesh);

    side->desc = desc;
    side->holders = rk_calloc(num_ranks, sizeof(*side->holders));
    side->part_of = rk_calloc((size_t)world_size, sizeof(*side->part_of));
    side->held = rk_calloc(num_ranks, sizeof(*side->held));
    side->senders = rk_calloc(num_ranks, sizeof(*side->senders));
    side->part_begin = rk_calloc(num_ranks + 1, sizeof(*side->part_begin));
    side->boxes = rk_calloc(num_ranks, sizeof(*side->boxes));
    for (int32_t rank = 0; rank < world_size; rank++) {
        struct rk_mesh_coords coords;

        side->part_of[rank] = -1;
        if (rk_mesh_find_coords(desc->mesh, rank, &coords))
            side->holders[side->num_holders++] = (struct holder){.rank = rank, .coords = coords};
    }
}

static void side_fini(struct side *side)
{
    rk_free(side->holders);
    rk_free(side->part_of);
    rk_free(side->held);
    rk_free(side->senders);
    rk_free(side->part_begin);
    rk_free(side->boxes);
}

/* --- senders: heaps by bytes sent, then by rank --- */

static bool is_before(const struct sender *a, const struct sender *b)
{
    return a->sent_bytes < b->sent_bytes || (a->sent_bytes == b->sent_bytes && a->rank < b->rank);
}

/* Restores the order below entry i of heap[count]. */
static void sift_down(struct sender *heap, int32_t count, int32_t i)
{
    struct sender moved = heap[i];

    for (;;) {
        int32_t child = 2 * i + 1;

        if (child >= count)
            break;
        if (child + 1 < count && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &moved))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

static void make_heap(struct sender *heap, int32_t count)
{
    for (int32_t i = count / 2 - 1; i >= 0; i--)
        sift_down(heap, count, i);
}

/* --- parts of a tensor --- */

static struct holding holding_of(const struct rk_param *param)
{
    return (struct holding){.stage = param->stage,
                            .shared_stage = param->shared_stage,
                            .ep_rank = param->ep_rank,
                            .num_parts = param->split.num_parts,
                            .axis = param->split.axis};
}

static bool is_same_holding(const struct holding *a, const struct holding *b)
{
    return a->stage == b->stage && a->shared_stage == b->shared_stage && a->ep_rank == b->ep_rank &&
           a->num_parts == b->num_parts && a->axis == b->axis;
}

/* Finds the part of every rank, and counts the ranks of part p in part_begin[p + 1]. */
static void find_parts(struct side *side, const struct rk_param *param)
{
    side->num_held = 0;
    for (int32_t part = 0; part <= side->holding.num_parts; part++)
        side->part_begin[part] = 0;
    for (int32_t i = 0; i < side->num_holders; i++) {
        const struct holder *holder = &side->holders[i];
        struct rk_placement placement;

        rk_param_place(&placement, param, side->desc->mesh, &holder->coords);
        side->part_of[holder->rank] = placement.is_held ? placement.part : -1;
        if (!placement.is_held)
            continue;
        side->held[side->num_held++] = holder->rank;
        side->part_begin[placement.part + 1]++;
    }
}

static void list_senders(struct side *side, const struct load *loads)
{
    int32_t *next = side->part_begin; /* shifted back below */
    int32_t num_parts = side->holding.num_parts;

    for (int32_t part = 0; part < num_parts; part++)
        side->part_begin[part + 1] += side->part_begin[part];
    for (int32_t i = 0; i < side->num_held; i++) {
        int32_t rank = side->held[i];

        side->senders[next[side->part_of[rank]]++] = (struct sender){loads[rank].sent_bytes, rank};
    }
    for (int32_t part = num_parts; part > 0; part--)
        side->part_begin[part] = side->part_begin[part - 1];
    side->part_begin[0] = 0;
    for (int32_t part = 0; part < num_parts; part++)
        make_heap(side->senders + side->part_begin[part],
                  side->part_begin[part + 1] - side->part_begin[part]);
}

static void side_place(struct side *side, const struct load *loads, int64_t row)
{
    const struct rk_param *param = &side->desc->params[row];
    struct holding holding = holding_of(param);

    RK_ASSERT(holding.num_parts >= 1);
    RK_ASSERT(holding.num_parts <= side->num_holders);
    if (!is_same_holding(&holding, &side->holding)) {
        side->holding = holding;
        find_parts(side, param);
        list_senders(side, loads);
    }
    for (int32_t part = 0; part < holding.num_parts; part++) {
        struct rk_mesh_coords coords;
        struct rk_placement placement;

        if (side->part_begin[part] == side->part_begin[part + 1])
            continue;
        rk_mesh_find_coords(side->desc->mesh, side->senders[side->part_begin[part]].rank, &coords);
        rk_param_place(&placement, param, side->desc->mesh, &coords);
        side->boxes[part] = rk_param_get_box(param, &placement);
    }
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

/* FNV-1a by words; the shift carries the upper bits to the lower ones. */
static void hash_value(uint64_t *hash, int64_t value)
{
    *hash = (*hash ^ (uint64_t)value) * 0x100000001b3u;
    *hash ^= *hash >> 32;
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

/* The load of a rank in the current round. */
static struct load *load_of(struct planner *planner, int32_t rank)
{
    struct load *load = &planner->loads[rank];

    if (load->round != planner->round) {
        load->round = planner->round;
        load->round_sent = load->round_received = 0;
    }
    return load;
}

/* Adds one move of at most a bucket to this round or the next. */
static void send(struct planner *planner, struct rk_reshard_move *move)
{
    struct rk_reshard_plan *plan = planner->plan;
    struct load *source = load_of(planner, move->source);
    struct load *destination = load_of(planner, move->destination);
    int64_t bytes = box_elements(&move->box) * (int64_t)planner->desc->elem_bytes;

    RK_ASSERT(bytes <= planner->desc->bucket_bytes);
    if (source->round_sent + bytes > planner->desc->bucket_bytes ||
        destination->round_received + bytes > planner->desc->bucket_bytes) {
        planner->round++;
        load_of(planner, move->source);
        load_of(planner, move->destination);
    }
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

/* Chooses which of the ranks that hold a part of the source sends `bytes` to `rank`. */
static int32_t choose_source(struct planner *planner, int32_t part, int32_t rank, uint64_t bytes)
{
    struct side *source = &planner->source;
    int32_t begin = source->part_begin[part];
    struct sender *heap = source->senders + begin, best = heap[0];

    if (source->part_of[rank] == part)
        return rank;
    RK_DCHECK(best.sent_bytes == planner->loads[best.rank].sent_bytes);
    heap[0].sent_bytes += bytes;
    sift_down(heap, source->part_begin[part + 1] - begin, 0);
    return best.rank;
}

static void add_overlap(struct planner *planner, const struct overlap *overlap, int64_t *count)
{
    if (*count == planner->overlap_capacity) {
        planner->overlap_capacity = RK_MAX(64, 2 * planner->overlap_capacity);
        planner->overlaps =
            rk_realloc(planner->overlaps, (size_t)planner->overlap_capacity * sizeof(*planner->overlaps));
    }
    planner->overlaps[(*count)++] = *overlap;
}

static void find_overlaps(struct planner *planner)
{
    const struct side *source = &planner->source, *destination = &planner->destination;
    int64_t count = 0;

    for (int32_t part = 0; part < destination->holding.num_parts; part++) {
        planner->overlap_begin[part] = count;
        if (destination->part_begin[part] == destination->part_begin[part + 1])
            continue;
        for (int32_t from = 0; from < source->holding.num_parts; from++) {
            struct overlap overlap = {.part = part, .source_part = from};

            if (source->part_begin[from] < source->part_begin[from + 1] &&
                intersect(&overlap.box, &source->boxes[from], &destination->boxes[part]))
                add_overlap(planner, &overlap, &count);
        }
    }
    planner->overlap_begin[destination->holding.num_parts] = count;
}

/* Plans all moves of the tensor to `rank`. */
static void plan_destination(struct planner *planner, int64_t source_row, int64_t row, int32_t rank)
{
    int32_t part = planner->destination.part_of[rank];

    for (int64_t i = planner->overlap_begin[part]; i < planner->overlap_begin[part + 1]; i++) {
        const struct overlap *overlap = &planner->overlaps[i];
        struct rk_reshard_move move = {
            .source_param = source_row, .param = row, .destination = rank, .box = overlap->box};
        uint64_t bytes = (uint64_t)box_elements(&move.box) * planner->desc->elem_bytes;

        RK_DCHECK(overlap->part == part);
        move.source = choose_source(planner, overlap->source_part, rank, bytes);
        move_box(planner, &move);
    }
}

/* Whether this rank is the one that counts, among the ranks that hold its part of the source. */
static bool is_counted(const struct planner *planner, int64_t source_row)
{
    const struct rk_reshard_side *side = planner->source.desc;
    struct rk_mesh_coords coords;
    struct rk_placement placement;

    if (!rk_mesh_find_coords(side->mesh, planner->desc->rank, &coords))
        return false;
    rk_param_place(&placement, &side->params[source_row], side->mesh, &coords);
    return placement.is_main;
}

/* Number of lower ranks that hold the part of this rank of the destination; -1: it holds none. */
static int32_t count_before(const struct planner *planner)
{
    const struct side *side = &planner->destination;
    int32_t part = side->part_of[planner->desc->rank], count = 0;

    if (part < 0)
        return -1;
    for (int32_t i = 0; side->held[i] != planner->desc->rank; i++)
        count += side->part_of[side->held[i]] == part;
    return count;
}

static struct rk_status *plan_row(struct planner *planner, int64_t row)
{
    struct rk_reshard_plan *plan = planner->plan;
    struct rk_reshard_part *part = &plan->parts[row];
    const struct side *destination = &planner->destination;

    RK_TRY(match_row(planner->desc, row, &part->source_param));
    side_place(&planner->source, planner->loads, part->source_param);
    side_place(&planner->destination, planner->loads, row);
    find_overlaps(planner);
    for (int32_t p = 0; p < destination->holding.num_parts; p++)
        part->num_copies =
            RK_MAX(part->num_copies, destination->part_begin[p + 1] - destination->part_begin[p]);
    for (int32_t i = 0; i < destination->num_held; i++)
        plan_destination(planner, part->source_param, row, destination->held[i]);
    plan->num_copies = RK_MAX(plan->num_copies, part->num_copies);
    part->is_counted = is_counted(planner, part->source_param);
    part->copy = count_before(planner);
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
    planner.overlap_begin =
        rk_calloc((size_t)planner.destination.num_holders + 1, sizeof(*planner.overlap_begin));
    st = plan_all(&planner);
    side_fini(&planner.source);
    side_fini(&planner.destination);
    rk_free(planner.overlaps);
    rk_free(planner.overlap_begin);
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
