/* The plan that moves a model from one mesh to another. It is a pure function, so meshes of all axes are
 * tested, including those that the engine does not support. The expected moves are found by marking the
 * global tensors. */
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "engine/rk_reshard.h"

#define WORLD_SIZE 8
#define ELEM_BYTES 2
#define NUM_ROWS   8

/* Rows as layers declare them: sizes divide by every tp below. */
struct row_case {
    const char *name;
    int64_t rows, cols, rows_padded;
    int32_t split_dim;
    int32_t num_kv_heads; /* 0: one part per tp rank */
    int32_t layer;        /* layer 0 or 1; determines the stage */
    bool is_tied;         /* the last stage has a copy of it */
    int32_t expert;       /* expert 0 or 1; -1: dense */
};

static const struct row_case rows[NUM_ROWS] = {
    {"embedding, padded and tied", 51, 3, 96, 0, 0, 0, true, -1},
    {"norm", 5, 1, 0, -1, 0, 0, false, -1},
    {"q", 48, 2, 0, 0, 0, 0, false, -1},
    {"k of two heads", 24, 2, 0, 0, 2, 0, false, -1},
    {"o, columns", 3, 48, 0, 1, 0, 0, false, -1},
    {"gate of the second layer", 24, 3, 0, 0, 0, 1, false, -1},
    {"down of the second layer", 2, 24, 0, 1, 0, 1, false, -1},
    {"expert of the second layer", 24, 2, 0, 0, 0, 1, false, 1},
};

static int32_t gcd(int32_t a, int32_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

static struct rk_param make_param(const struct row_case *row, const struct rk_mesh *mesh)
{
    int32_t num_stages = rk_mesh_axis_size(mesh, RK_AXIS_PP), ep = rk_mesh_axis_size(mesh, RK_AXIS_EP);
    struct rk_param param = {
        .rank = row->cols > 1 ? 2 : 1,
        .shape = {row->rows, row->cols},
        .stage = row->layer * num_stages / 2,
        .shared_stage = row->is_tied && num_stages > 1 ? num_stages - 1 : -1,
        .ep_rank = row->expert >= 0 ? row->expert * ep / 2 : -1,
        .split = {.axis = row->expert >= 0 ? RK_AXIS_ETP : RK_AXIS_TP, .dim = row->split_dim, .num_parts = 1},
        .grad_group = row->expert >= 0 ? RK_GROUP_EDP : RK_GROUP_DP_CP,
    };
    int32_t axis_size = rk_mesh_axis_size(mesh, param.split.axis);

    snprintf(param.name, sizeof(param.name), "%s", row->name);
    if (row->split_dim < 0)
        return param;
    param.split.num_parts = row->num_kv_heads ? gcd(row->num_kv_heads, axis_size) : axis_size;
    param.split.size_padded = row->rows_padded ? row->rows_padded : param.shape[row->split_dim];
    return param;
}

/* One side of a plan. */
struct layout {
    struct rk_mesh *mesh;
    struct rk_param params[NUM_ROWS];
};

static void layout_init(struct layout *layout, const struct rk_mesh_spec *spec)
{
    assert_ok(rk_mesh_create(&layout->mesh, spec, WORLD_SIZE));
    for (size_t i = 0; i < NUM_ROWS; i++)
        layout->params[i] = make_param(&rows[i], layout->mesh);
}

static struct rk_reshard_side side_of(const struct layout *layout)
{
    return (struct rk_reshard_side){layout->mesh, layout->params, NUM_ROWS};
}

/* The rank's part of a row; empty outside the mesh. */
static struct rk_param_box box_of(const struct layout *layout, int64_t row, int32_t rank)
{
    struct rk_mesh_coords coords;
    struct rk_placement placement;

    if (!rk_mesh_find_coords(layout->mesh, rank, &coords))
        return (struct rk_param_box){0};
    rk_param_place(&placement, &layout->params[row], layout->mesh, &coords);
    return rk_param_get_box(&layout->params[row], &placement);
}

/* A rank's plans, and the layouts they are between. */
struct plans {
    struct layout source, destination;
    int64_t bucket_bytes;
    struct rk_reshard_plan *of[WORLD_SIZE];
};

static void plans_init(struct plans *plans, const struct rk_mesh_spec *source,
                       const struct rk_mesh_spec *destination, int64_t bucket_bytes)
{
    layout_init(&plans->source, source);
    layout_init(&plans->destination, destination);
    plans->bucket_bytes = bucket_bytes;
    for (int32_t rank = 0; rank < WORLD_SIZE; rank++)
        assert_ok(rk_reshard_plan_create(
            &plans->of[rank], &(struct rk_reshard_desc){.source = side_of(&plans->source),
                                                        .destination = side_of(&plans->destination),
                                                        .rank = rank,
                                                        .elem_bytes = ELEM_BYTES,
                                                        .bucket_bytes = bucket_bytes}));
}

static void plans_fini(struct plans *plans)
{
    for (int32_t rank = 0; rank < WORLD_SIZE; rank++)
        rk_reshard_plan_destroy(plans->of[rank]);
    rk_mesh_destroy(plans->source.mesh);
    rk_mesh_destroy(plans->destination.mesh);
}

static void fail_pair(const struct plans *plans, int64_t row, int32_t rank, const char *what)
{
    struct rk_mesh_spec from = rk_mesh_get_spec(plans->source.mesh);
    struct rk_mesh_spec to = rk_mesh_get_spec(plans->destination.mesh);

    fail_msg("from %s (%s, %d ranks from %d on) to %s (%s, %d ranks from %d on), bucket %lld: '%s' on rank "
             "%d: %s",
             rk_mesh_text(plans->source.mesh), from.order, from.num_ranks, from.ranks[0],
             rk_mesh_text(plans->destination.mesh), to.order, to.num_ranks, to.ranks[0],
             (long long)plans->bucket_bytes, rows[row].name, rank, what);
}

static bool contains(const struct rk_param_box *box, int64_t row, int64_t col)
{
    return row >= box->begin[0] && row < box->begin[0] + box->shape[0] && col >= box->begin[1] &&
           col < box->begin[1] + box->shape[1];
}

static bool is_inside(const struct rk_param_box *inner, const struct rk_param_box *outer)
{
    return contains(outer, inner->begin[0], inner->begin[1]) &&
           contains(outer, inner->begin[0] + inner->shape[0] - 1, inner->begin[1] + inner->shape[1] - 1);
}

/* Checks that every element of the rank's destination part is received once, from a rank that has it, and
 * from the rank itself if it has it. Returns the number of elements from other ranks. */
static int64_t check_coverage(const struct plans *plans, int64_t row, int32_t rank)
{
    const struct rk_reshard_plan *plan = plans->of[rank];
    struct rk_param_box mine = box_of(&plans->source, row, rank), to = box_of(&plans->destination, row, rank);
    int64_t cols = rows[row].cols, from_others = 0;
    int32_t *sources = rk_calloc((size_t)(rows[row].rows * cols), sizeof(*sources)); /* rank + 1 */

    for (int64_t i = 0; i < plan->num_moves; i++) {
        const struct rk_reshard_move *move = &plan->moves[i];
        struct rk_param_box from = box_of(&plans->source, row, move->source);

        if (move->param != row || move->destination != rank)
            continue;
        if (!is_inside(&move->box, &from))
            fail_pair(plans, row, rank, "a source does not hold what it is to send");
        for (int64_t r = 0; r < move->box.shape[0]; r++) {
            for (int64_t c = 0; c < move->box.shape[1]; c++) {
                int32_t *source = &sources[(move->box.begin[0] + r) * cols + move->box.begin[1] + c];

                if (*source)
                    fail_pair(plans, row, rank, "an element comes twice");
                *source = move->source + 1;
            }
        }
    }
    for (int64_t r = 0; r < rows[row].rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            int32_t source = sources[r * cols + c];

            if (contains(&to, r, c) != (source != 0))
                fail_pair(plans, row, rank, "an element is missing, or comes where it does not belong");
            if (source && contains(&mine, r, c) != (source == rank + 1))
                fail_pair(plans, row, rank, "an element does not come from the rank itself that has it");
            from_others += source && source != rank + 1;
        }
    }
    rk_free(sources);
    return from_others;
}

/* The i-th move of the plan from `source` to `destination`, or NULL. */
static const struct rk_reshard_move *move_between(const struct rk_reshard_plan *plan, int32_t source,
                                                  int32_t destination, int64_t i)
{
    for (int64_t j = 0; j < plan->num_moves; j++) {
        const struct rk_reshard_move *move = &plan->moves[j];

        if (move->source == source && move->destination == destination && i-- == 0)
            return move;
    }
    return NULL;
}

static bool is_equal(const struct rk_reshard_move *a, const struct rk_reshard_move *b)
{
    return a->param == b->param && a->source_param == b->source_param && a->round == b->round &&
           memcmp(&a->box, &b->box, sizeof(a->box)) == 0;
}

/* Checks that both ranks of a pair have the same moves in the same order. */
static void check_ends(const struct plans *plans)
{
    for (int32_t s = 0; s < WORLD_SIZE; s++) {
        for (int32_t d = 0; d < WORLD_SIZE; d++) {
            for (int64_t i = 0;; i++) {
                const struct rk_reshard_move *here = move_between(plans->of[s], s, d, i);
                const struct rk_reshard_move *there = move_between(plans->of[d], s, d, i);

                if (!here && !there)
                    break;
                if (!here || !there || !is_equal(here, there))
                    fail_pair(plans, 0, s, "the two ends of a move disagree");
            }
        }
    }
}

/* Bytes of a rank's largest round. */
struct largest {
    int64_t sent, received;
};

/* Checks that no rank sends or receives more than a bucket in a round, and that the sums equal the plan's. */
static void check_rounds(const struct plans *plans, int32_t rank, struct largest *largest)
{
    const struct rk_reshard_plan *plan = plans->of[rank];
    struct rk_reshard_traffic traffic = {0};
    int64_t sent = 0, received = 0, send_max = 0, recv_max = 0;
    int32_t round = 0;

    for (int64_t i = 0; i < plan->num_moves; i++) {
        const struct rk_reshard_move *move = &plan->moves[i];
        int64_t bytes = move->box.shape[0] * move->box.shape[1] * ELEM_BYTES;

        if (move->source == move->destination) {
            assert_int_equal(move->round, -1);
            traffic.copied_bytes += (uint64_t)bytes;
            continue;
        }
        assert_in_range(move->round, round, plan->num_rounds - 1);
        if (move->round > round)
            sent = received = 0;
        round = move->round;
        if (move->source == rank) {
            sent += bytes;
            send_max = RK_MAX(send_max, sent);
            traffic.sent_bytes += (uint64_t)bytes;
        } else {
            received += bytes;
            recv_max = RK_MAX(recv_max, received);
            traffic.received_bytes += (uint64_t)bytes;
        }
    }
    if (send_max > plans->bucket_bytes || recv_max > plans->bucket_bytes)
        fail_pair(plans, 0, rank, "a round has more than a bucket");
    largest->sent = RK_MAX(largest->sent, send_max);
    largest->received = RK_MAX(largest->received, recv_max);
    assert_memory_equal(&traffic, &plan->mine, sizeof(traffic));
}

/* Checks that one of the source's copies of a part is the main one, and that the destination's copies are
 * numbered. */
static void check_parts(const struct plans *plans, int64_t row)
{
    int64_t num_elements = rows[row].rows * rows[row].cols, counted = 0;
    int64_t held[WORLD_SIZE] = {0};
    int32_t num_copies = plans->of[0]->parts[row].num_copies;

    for (int32_t rank = 0; rank < WORLD_SIZE; rank++) {
        const struct rk_reshard_part *part = &plans->of[rank]->parts[row];
        struct rk_param_box from = box_of(&plans->source, row, rank),
                            to = box_of(&plans->destination, row, rank);

        assert_int_equal(part->source_param, row);
        assert_int_equal(part->num_copies, num_copies);
        if (part->is_counted)
            counted += from.shape[0] * from.shape[1];
        if (part->copy >= 0)
            held[part->copy] += to.shape[0] * to.shape[1];
    }
    assert_in_range(num_copies, 1, plans->of[0]->num_copies);
    assert_int_equal(counted, num_elements);
    for (int32_t copy = 0; copy < WORLD_SIZE; copy++)
        assert_int_equal(held[copy], copy < num_copies ? num_elements : 0);
}

static bool is_same_box(const struct rk_param_box *a, const struct rk_param_box *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static bool is_empty(const struct rk_param_box *box)
{
    return box->shape[0] * box->shape[1] == 0;
}

/* Elements in both. */
static int64_t count_common(const struct rk_param_box *a, const struct rk_param_box *b)
{
    int64_t count = 1;

    for (int dim = 0; dim < RK_PARAM_DIMS; dim++) {
        int64_t begin = RK_MAX(a->begin[dim], b->begin[dim]);
        int64_t end = RK_MIN(a->begin[dim] + a->shape[dim], b->begin[dim] + b->shape[dim]);

        count *= RK_MAX(end - begin, 0);
    }
    return count;
}

/* The rank that is to send elements of a box of the source to `rank`: itself if it has them, or else the one
 * of those that have them that has sent least so far, the lowest of several. */
static int32_t expected_sender(const struct plans *plans, int64_t row, const struct rk_param_box *from,
                               int32_t rank, const int64_t *sent)
{
    struct rk_param_box mine = box_of(&plans->source, row, rank);
    int32_t best = -1;

    if (is_same_box(&mine, from))
        return rank;
    for (int32_t s = WORLD_SIZE - 1; s >= 0; s--) {
        struct rk_param_box box = box_of(&plans->source, row, s);

        if (is_same_box(&box, from) && (best < 0 || sent[s] <= sent[best]))
            best = s;
    }
    return best;
}

/* Checks the moves of `row` to `rank`, and adds them to what each rank has sent. */
static void check_senders_of(const struct plans *plans, int64_t row, int32_t rank, int64_t *sent)
{
    const struct rk_reshard_plan *plan = plans->of[rank];
    struct rk_param_box to = box_of(&plans->destination, row, rank);

    for (int32_t s = 0; s < WORLD_SIZE; s++) {
        struct rk_param_box from = box_of(&plans->source, row, s);
        int32_t expected;
        bool is_new = !is_empty(&from);

        for (int32_t before = 0; before < s; before++) {
            struct rk_param_box other = box_of(&plans->source, row, before);

            is_new = is_new && !is_same_box(&from, &other);
        }
        if (!is_new || count_common(&from, &to) == 0)
            continue;
        expected = expected_sender(plans, row, &from, rank, sent);
        for (int64_t i = 0; i < plan->num_moves; i++) {
            const struct rk_reshard_move *move = &plan->moves[i];

            if (move->param == row && move->destination == rank && is_inside(&move->box, &from) &&
                move->source != expected)
                fail_pair(plans, row, rank, "another rank than the least loaded one sends");
        }
        if (expected != rank)
            sent[expected] += count_common(&from, &to);
    }
}

static void check_senders(const struct plans *plans)
{
    int64_t sent[WORLD_SIZE] = {0};

    for (int64_t row = 0; row < NUM_ROWS; row++) {
        for (int32_t rank = 0; rank < WORLD_SIZE; rank++)
            check_senders_of(plans, row, rank, sent);
    }
}

/* Returns the transferred bytes. */
static uint64_t check_pair(const struct rk_mesh_spec *source, const struct rk_mesh_spec *destination,
                           int64_t bucket_bytes)
{
    uint64_t sent = 0, received = 0, moved, from_others = 0;
    struct largest largest = {0};
    struct plans plans;

    plans_init(&plans, source, destination, bucket_bytes);
    moved = plans.of[0]->moved_bytes;
    for (int32_t rank = 0; rank < WORLD_SIZE; rank++) {
        for (int64_t row = 0; row < NUM_ROWS; row++)
            from_others += (uint64_t)check_coverage(&plans, row, rank) * ELEM_BYTES;
        check_rounds(&plans, rank, &largest);
        sent += plans.of[rank]->mine.sent_bytes;
        received += plans.of[rank]->mine.received_bytes;
        assert_true(plans.of[rank]->hash == plans.of[0]->hash);
        assert_true(plans.of[rank]->moved_bytes == moved);
        assert_int_equal(plans.of[rank]->num_rounds, plans.of[0]->num_rounds);
    }
    for (int32_t rank = 0; rank < WORLD_SIZE; rank++) {
        assert_int_equal(plans.of[rank]->send_bytes_max, largest.sent);
        assert_int_equal(plans.of[rank]->recv_bytes_max, largest.received);
    }
    for (int64_t row = 0; row < NUM_ROWS; row++)
        check_parts(&plans, row);
    check_ends(&plans);
    check_senders(&plans);
    /* Exactly the elements that a rank lacks. */
    assert_true(moved == from_others);
    assert_true(sent == moved);
    assert_true(received == moved);
    plans_fini(&plans);
    return moved;
}

static const struct rk_mesh_spec shapes[] = {
    {.tp = 1, .dp = 1},          {.tp = 2, .dp = 1},          {.tp = 4, .dp = 1},
    {.tp = 8, .dp = 1},          {.tp = 3, .dp = 1},          {.tp = 6, .dp = 1},
    {.tp = 1, .dp = 2},          {.tp = 1, .dp = 3},          {.tp = 1, .dp = 8},
    {.tp = 2, .dp = 2},          {.tp = 2, .dp = 4},          {.tp = 4, .dp = 2},
    {.tp = 2, .dp = 3},          {.tp = 3, .dp = 2},          {.tp = 1, .dp = 1, .pp = 2},
    {.tp = 2, .dp = 1, .pp = 2}, {.tp = 1, .dp = 2, .pp = 2}, {.tp = 2, .dp = 2, .pp = 2},
    {.tp = 4, .dp = 1, .pp = 2}, {.tp = 1, .dp = 4, .pp = 2}, {.tp = 2, .cp = 2, .dp = 2},
    {.tp = 2, .cp = 2, .pp = 2}, {.tp = 2, .ep = 2, .dp = 4}, {.tp = 2, .ep = 2, .etp = 1, .dp = 2, .pp = 2},
};

/* The same mesh over other ranks: the first ones, the last ones, or all in reverse order. */
static struct rk_mesh_spec place(struct rk_mesh_spec spec, size_t variant, int32_t *ranks)
{
    static const char *const orders[] = {RK_MESH_ORDER_TRAIN, "pp-dp-cp-ep-tp"};
    int32_t count = spec.tp * RK_MAX(spec.cp, 1) * spec.dp * RK_MAX(spec.pp, 1);

    for (int32_t i = 0; i < count; i++)
        ranks[i] = variant % 3 == 0 ? i : variant % 3 == 1 ? WORLD_SIZE - count + i : WORLD_SIZE - 1 - i;
    spec.ranks = ranks;
    spec.num_ranks = count;
    if (RK_MAX(spec.ep, 1) == 1 || RK_MAX(spec.pp, 1) == 1)
        snprintf(spec.order, sizeof(spec.order), "%s", orders[variant / 3 % 2]);
    return spec;
}

/* Goal: for any two meshes, each rank receives exactly the elements that it lacks, once. */
static void test_all_pairs_of_meshes_cover_every_element_once(void **state)
{
    static const int64_t buckets[] = {1 << 20, 64, ELEM_BYTES};
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(shapes); i++) {
        for (size_t j = 0; j < RK_ARRAY_LEN(shapes); j++) {
            int32_t source_ranks[WORLD_SIZE], ranks[WORLD_SIZE];
            struct rk_mesh_spec source = place(shapes[i], n % 6, source_ranks);
            struct rk_mesh_spec destination = place(shapes[j], n / 6 % 6, ranks);

            n++;
            if (rk_test_in_part())
                check_pair(&source, &destination, buckets[n % 8 == 0 ? 2 : n % 2]);
        }
    }
}

/* --- volumes that can be computed by hand --- */

/* Bytes of the model: rows that are split evenly over tp, and the other rows. */
static uint64_t model_bytes(void)
{
    uint64_t elements = 0;

    for (size_t i = 0; i < NUM_ROWS; i++)
        elements += (uint64_t)(rows[i].rows * rows[i].cols);
    return elements * ELEM_BYTES;
}

/* Goal: elements that both layouts have on the same rank are not transferred: from replicas to parts, and to
 * the same layout. */
static void test_elements_on_the_same_rank_are_not_transferred(void **state)
{
    static const struct rk_mesh_spec d8 = {.dp = 8}, t8 = {.tp = 8}, t2d4 = {.tp = 2, .dp = 4};
    static const struct rk_mesh_spec t2p2d2 = {.tp = 2, .dp = 2, .pp = 2};

    (void)state;
    assert_int_equal(check_pair(&d8, &t8, 1 << 20), 0);
    assert_int_equal(check_pair(&d8, &t2d4, 1 << 20), 0);
    assert_int_equal(check_pair(&t8, &t8, 1 << 20), 0);
    assert_int_equal(check_pair(&t2p2d2, &t2p2d2, 1 << 20), 0);
}

/* One matrix of 48 rows of `cols` elements, split by rows. */
static void one_matrix(struct layout *layout, const struct rk_mesh_spec *spec, int64_t cols)
{
    struct row_case row = rows[2];

    row.cols = cols;
    assert_ok(rk_mesh_create(&layout->mesh, spec, WORLD_SIZE));
    layout->params[0] = make_param(&row, layout->mesh);
}

/* A rank's traffic for that matrix, in bytes of M = 48 * 20 * ELEM_BYTES. */
static struct rk_reshard_traffic matrix_traffic(const struct rk_mesh_spec *source,
                                                const struct rk_mesh_spec *destination, int32_t rank)
{
    struct layout from, to;
    struct rk_reshard_plan *plan;
    struct rk_reshard_traffic traffic;

    one_matrix(&from, source, 20);
    one_matrix(&to, destination, 20);
    assert_ok(rk_reshard_plan_create(&plan, &(struct rk_reshard_desc){.source = {from.mesh, from.params, 1},
                                                                      .destination = {to.mesh, to.params, 1},
                                                                      .rank = rank,
                                                                      .elem_bytes = ELEM_BYTES,
                                                                      .bucket_bytes = 1 << 20}));
    traffic = plan->mine;
    rk_reshard_plan_destroy(plan);
    rk_mesh_destroy(from.mesh);
    rk_mesh_destroy(to.mesh);
    return traffic;
}

/* Goal: the received volume of HybridFlow's grouping, (tp - tg pg) / (tg pg tp) M per rank; and all ranks
 * send as much as they receive. arXiv:2409.19256, table 2. */
static void test_volume_is_that_of_the_formula(void **state)
{
    static const int32_t strided[] = {0, 2, 1, 3, 4, 6, 5, 7};
    static const struct {
        const char *label;
        struct rk_mesh_spec source, destination;
        int64_t numerator, denominator; /* of M, received by each rank */
    } cases[] = {
        {"t4 d2 -> t2 d4", {.tp = 4, .dp = 2}, {.tp = 2, .dp = 4, .num_ranks = 8, .ranks = strided}, 1, 4},
        {"t2 d4 -> t1 d8", {.tp = 2, .dp = 4}, {.dp = 8}, 1, 2},
        {"t8 -> t1 d8", {.tp = 8}, {.dp = 8}, 7, 8},
        {"t8 -> t8", {.tp = 8}, {.tp = 8}, 0, 8},
        {"d8 -> t8", {.dp = 8}, {.tp = 8}, 0, 8},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        uint64_t expected = (uint64_t)(48 * 20 * ELEM_BYTES * cases[i].numerator / cases[i].denominator);

        for (int32_t rank = 0; rank < WORLD_SIZE; rank++) {
            struct rk_reshard_traffic traffic = matrix_traffic(&cases[i].source, &cases[i].destination, rank);

            if (traffic.received_bytes != expected || traffic.sent_bytes != expected)
                fail_msg("%s: rank %d receives %llu and sends %llu bytes, expected %llu", cases[i].label,
                         rank, (unsigned long long)traffic.received_bytes,
                         (unsigned long long)traffic.sent_bytes, (unsigned long long)expected);
        }
    }
}

/* Goal: between two disjoint meshes the copies of the source share the sending. */
static void test_disjoint_meshes_use_all_copies_of_the_source(void **state)
{
    static const int32_t low[] = {0, 1, 2, 3}, high[] = {4, 5, 6, 7};
    static const struct rk_mesh_spec source = {.dp = 4, .num_ranks = 4, .ranks = low};
    static const struct rk_mesh_spec destination = {.tp = 4, .num_ranks = 4, .ranks = high};
    const uint64_t part = 48 * 20 * ELEM_BYTES / 4;

    (void)state;
    for (int32_t rank = 0; rank < WORLD_SIZE; rank++) {
        struct rk_reshard_traffic traffic = matrix_traffic(&source, &destination, rank);

        assert_int_equal(traffic.sent_bytes, rank < 4 ? part : 0);
        assert_int_equal(traffic.received_bytes, rank < 4 ? 0 : part);
        assert_int_equal(traffic.copied_bytes, 0);
    }
    assert_int_equal(check_pair(&source, &destination, 64), model_bytes() + 3 * 5 * ELEM_BYTES +
                                                                /* the second copies of k's two heads */
                                                                24 * 2 * ELEM_BYTES);
}

/* --- refusals --- */

static void assert_refused(struct plans *plans, const char *text)
{
    struct rk_reshard_plan *plan;

    assert_fails(
        rk_reshard_plan_create(&plan, &(struct rk_reshard_desc){.source = side_of(&plans->source),
                                                                .destination = side_of(&plans->destination),
                                                                .elem_bytes = ELEM_BYTES,
                                                                .bucket_bytes = 64}),
        RK_INVALID_ARGUMENT, text);
    assert_null(plan);
}

static void test_tables_of_different_models_are_refused(void **state)
{
    static const struct rk_mesh_spec t2 = {.tp = 2, .dp = 4}, t4 = {.tp = 4, .dp = 2};
    struct plans plans;

    (void)state;
    plans_init(&plans, &t2, &t4, 64);
    plans.source.params[1].shape[0]++;
    assert_refused(&plans, "tensor 'norm' is [6, 1] in the source and [5, 1] in the destination");
    plans.source.params[1].shape[0]--;
    snprintf(plans.source.params[1].name, sizeof(plans.source.params[1].name), "bias");
    assert_refused(&plans, "tensor 'bias' of the source");
    plans.source.params[1] = plans.source.params[2];
    assert_refused(&plans, "tensor 'norm' of the destination");
    plans_fini(&plans);
}

/* Goal: plans that ranks must not combine have different hashes. */
static void test_hash_depends_on_meshes_and_bucket(void **state)
{
    static const struct rk_mesh_spec t2 = {.tp = 2, .dp = 4}, t4 = {.tp = 4, .dp = 2};
    struct plans a, b, c;

    (void)state;
    plans_init(&a, &t2, &t4, 64);
    plans_init(&b, &t2, &t4, 128);
    plans_init(&c, &t4, &t2, 64);
    assert_true(a.of[0]->hash != b.of[0]->hash);
    assert_true(a.of[0]->hash != c.of[0]->hash);
    plans_fini(&a);
    plans_fini(&b);
    plans_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_pairs_of_meshes_cover_every_element_once),
        cmocka_unit_test(test_elements_on_the_same_rank_are_not_transferred),
        cmocka_unit_test(test_volume_is_that_of_the_formula),
        cmocka_unit_test(test_disjoint_meshes_use_all_copies_of_the_source),
        cmocka_unit_test(test_tables_of_different_models_are_refused),
        cmocka_unit_test(test_hash_depends_on_meshes_and_bucket),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
