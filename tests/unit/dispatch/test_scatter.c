/* Scatter and gather over fake workers: which rank gets which rows, and the order of the results. */
#include "tests/unit/dispatch/batch_util.h"

#include "dispatch/rk_modes.h"

#define MAX_RANKS 16

static struct rk_dispatch *make_dispatch(const char *mode, struct rk_mesh_spec spec, int32_t world_size)
{
    struct rk_dispatch *dispatch;
    struct rk_mesh *mesh;

    assert_ok(rk_mesh_create(&mesh, &spec, world_size));
    assert_ok(rk_dispatch_create(&dispatch, mode, mesh));
    rk_mesh_destroy(mesh);
    return dispatch;
}

static struct rk_mesh_spec tp2_dp2_pp2(void)
{
    return (struct rk_mesh_spec){.tp = 2, .dp = 2, .pp = 2};
}

/* What every rank of a worker group returns: its rows, with `add` * rank added to "x". */
static void run_workers(struct rk_batch **outputs, const struct rk_dispatch *dispatch,
                        const struct rk_scatter *scatter, int64_t add)
{
    for (int32_t r = 0; r < dispatch->world_size; r++) {
        const struct rk_batch *chunk = scatter->chunks[dispatch->chunk_of_rank[r]];
        int64_t num_rows = rk_batch_num_rows(chunk);
        const void *src;
        void *dst;

        assert_ok(rk_batch_get_dense(chunk, "x", RK_DTYPE_I64, 1, NULL, &src));
        assert_ok(rk_batch_create(&outputs[r], num_rows));
        assert_ok(rk_batch_add_dense(outputs[r], "x", RK_DTYPE_I64, 1, &num_rows, &dst));
        for (int64_t i = 0; i < num_rows; i++)
            ((int64_t *)dst)[i] = ((const int64_t *)src)[i] + add * r;
    }
}

static void destroy_outputs(struct rk_batch **outputs, int32_t count)
{
    for (int32_t r = 0; r < count; r++) {
        rk_batch_destroy(outputs[r]);
        outputs[r] = NULL;
    }
}

static void test_megatron_compute_proto_worked_example(void **state)
{
    struct rk_dispatch *dispatch = make_dispatch("MEGATRON_COMPUTE_PROTO", tp2_dp2_pp2(), 8);
    struct rk_batch *batch = make_numbered(8), *outputs[8], *whole, *seven = make_numbered(7);
    struct rk_scatter *scatter;

    (void)state;
    assert_ok(rk_scatter_batch(&scatter, dispatch, batch));
    assert_int_equal(scatter->num_chunks, 2);
    for (int r = 0; r < 8; r++) {
        if (r % 4 < 2)
            assert_rows(scatter->chunks[dispatch->chunk_of_rank[r]], ROWS(0, 1, 2, 3));
        else
            assert_rows(scatter->chunks[dispatch->chunk_of_rank[r]], ROWS(4, 5, 6, 7));
    }
    run_workers(outputs, dispatch, scatter, 10);
    assert_ok(rk_gather_batch(&whole, dispatch, outputs, scatter->num_padded));
    assert_rows(whole, ROWS(40, 41, 42, 43, 64, 65, 66, 67));
    rk_batch_destroy(whole);
    destroy_outputs(outputs, 8);
    rk_scatter_destroy(scatter);
    assert_fails(rk_scatter_batch(&scatter, dispatch, seven), RK_INVALID_ARGUMENT,
                 "MEGATRON_COMPUTE_PROTO: only support equal chunk: 7 rows into 2 chunks");
    assert_null(scatter);
    rk_batch_destroy(batch);
    rk_batch_destroy(seven);
    rk_dispatch_destroy(dispatch);
}

static void test_gather_only_collected_ranks_matter(void **state)
{
    struct rk_dispatch *dispatch = make_dispatch("MEGATRON_COMPUTE_PROTO", tp2_dp2_pp2(), 8);
    struct rk_batch *batch = make_numbered(4), *outputs[8], *whole;
    struct rk_scatter *scatter;

    (void)state;
    assert_ok(rk_scatter_batch(&scatter, dispatch, batch));
    run_workers(outputs, dispatch, scatter, 0);
    for (int r = 0; r < 8; r++) {
        if (r == 4 || r == 6)
            continue;
        rk_batch_destroy(outputs[r]);
        outputs[r] = NULL;
    }
    assert_ok(rk_gather_batch(&whole, dispatch, outputs, 0));
    assert_rows(whole, ROWS(0, 1, 2, 3));
    rk_batch_destroy(whole);
    rk_batch_destroy(outputs[6]);
    outputs[6] = NULL;
    assert_fails(rk_gather_batch(&whole, dispatch, outputs, 0), RK_INVALID_ARGUMENT,
                 "MEGATRON_COMPUTE_PROTO: the output of rank 6 is missing");
    assert_null(whole);
    destroy_outputs(outputs, 8);
    rk_scatter_destroy(scatter);
    rk_batch_destroy(batch);
    rk_dispatch_destroy(dispatch);
}

static void test_gather_outputs_of_other_forms_are_refused(void **state)
{
    struct rk_dispatch *dispatch = make_dispatch("MEGATRON_COMPUTE_PROTO", (struct rk_mesh_spec){.dp = 2}, 2);
    struct rk_batch *outputs[] = {make_numbered(2), make_rich(2)}, *whole;

    (void)state;
    assert_fails(rk_gather_batch(&whole, dispatch, outputs, 0), RK_INVALID_ARGUMENT,
                 "column 'pair' of part 1 is missing in part 0");
    assert_null(whole);
    destroy_outputs(outputs, 2);
    rk_dispatch_destroy(dispatch);
}

/* A method that returns its input returns the rows in their order, in every mode that cuts batches. */
static void test_row_identity_of_every_proto_mode(void **state)
{
    static const char *const modes[] = {"MEGATRON_COMPUTE_PROTO", "MEGATRON_PP_AS_DP_PROTO",
                                        "DP_COMPUTE_PROTO", "ND_COMPUTE"};
    const struct rk_mesh_spec meshes[] = {
        {.tp = 2, .cp = 2, .dp = 2, .pp = 2},
        {.tp = 4, .dp = 2, .pp = 2},
        {.dp = 16},
        {.tp = 2, .pp = 2, .order = "pp-tp-dp"},
    };

    (void)state;
    for (size_t m = 0; m < RK_ARRAY_LEN(modes); m++) {
        for (size_t k = 0; k < RK_ARRAY_LEN(meshes); k++) {
            struct rk_dispatch *dispatch = make_dispatch(modes[m], meshes[k], 16);
            struct rk_batch *batch = make_rich(32), *outputs[MAX_RANKS], *whole;
            struct rk_scatter *scatter;

            print_message("%s %zu\n", modes[m], k);
            assert_ok(rk_scatter_batch(&scatter, dispatch, batch));
            for (int r = 0; r < 16; r++)
                assert_ok(rk_batch_clone(&outputs[r], scatter->chunks[dispatch->chunk_of_rank[r]]));
            assert_ok(rk_gather_batch(&whole, dispatch, outputs, scatter->num_padded));
            assert_rich(whole);
            assert_true(rk_column_equal(rk_batch_find(whole, "x"), rk_batch_find(batch, "x")));
            destroy_outputs(outputs, 16);
            rk_batch_destroy(whole);
            rk_batch_destroy(batch);
            rk_scatter_destroy(scatter);
            rk_dispatch_destroy(dispatch);
        }
    }
}

static void test_pp_as_dp_proto_indivisible_batch_is_refused(void **state)
{
    struct rk_dispatch *dispatch = make_dispatch("MEGATRON_PP_AS_DP_PROTO", tp2_dp2_pp2(), 8);
    struct rk_batch *batch = make_numbered(6);
    struct rk_scatter *scatter;

    (void)state;
    assert_fails(rk_scatter_batch(&scatter, dispatch, batch), RK_INVALID_ARGUMENT, "6 rows into 4 chunks");
    rk_batch_destroy(batch);
    rk_dispatch_destroy(dispatch);
}

/* Auto padding over 4 ranks: B = 10 sends 12 rows and returns 10, B = 1 sends 4, B = 8 pads nothing; all in
 * between. */
static void test_dp_compute_proto_pads_and_trims(void **state)
{
    struct rk_dispatch *dispatch =
        make_dispatch("DP_COMPUTE_PROTO", (struct rk_mesh_spec){.tp = 2, .dp = 2}, 4);

    (void)state;
    for (int64_t num_rows = 0; num_rows < 20; num_rows++) {
        struct rk_batch *batch = make_rich(num_rows), *outputs[4], *whole;
        struct rk_scatter *scatter;
        int64_t sent = (num_rows + 3) / 4 * 4;
        const void *last;

        assert_ok(rk_scatter_batch(&scatter, dispatch, batch));
        assert_int_equal(scatter->num_padded, sent - num_rows);
        assert_int_equal(rk_batch_num_rows(scatter->chunks[3]), sent / 4);
        assert_int_equal(rk_batch_num_rows(batch), num_rows); /* the caller's batch is unchanged */
        if (scatter->num_padded) {
            /* the added rows are copies of the last row */
            assert_ok(rk_batch_get_dense(scatter->chunks[3], "x", RK_DTYPE_I64, 1, NULL, &last));
            assert_int_equal(((const int64_t *)last)[sent / 4 - 1], num_rows - 1);
        }
        for (int r = 0; r < 4; r++)
            assert_ok(rk_batch_clone(&outputs[r], scatter->chunks[r]));
        assert_ok(rk_gather_batch(&whole, dispatch, outputs, scatter->num_padded));
        assert_int_equal(rk_batch_num_rows(whole), num_rows);
        assert_rich(whole);
        destroy_outputs(outputs, 4);
        rk_batch_destroy(whole);
        rk_batch_destroy(batch);
        rk_scatter_destroy(scatter);
    }
    rk_dispatch_destroy(dispatch);
}

/* The list of results of a METRIC mode is never trimmed by a number of rows: it has one result per rank. */
static void test_dp_compute_metric_keeps_every_rank(void **state)
{
    struct rk_dispatch *dispatch = make_dispatch("DP_COMPUTE_METRIC", (struct rk_mesh_spec){.dp = 4}, 4);
    struct rk_batch *batch = make_numbered(10);
    struct rk_scatter *scatter;

    (void)state;
    assert_ok(rk_scatter_batch(&scatter, dispatch, batch));
    assert_int_equal(scatter->num_padded, 2);
    assert_int_equal(scatter->num_chunks, 4);
    assert_int_equal(dispatch->num_collected, 4);
    rk_scatter_destroy(scatter);
    rk_batch_destroy(batch);
    rk_dispatch_destroy(dispatch);
}

static void test_gather_of_metrics_alone_is_not_trimmed(void **state)
{
    struct rk_dispatch *dispatch = make_dispatch("DP_COMPUTE_PROTO", (struct rk_mesh_spec){.dp = 2}, 2);
    struct rk_batch *outputs[2], *whole;

    (void)state;
    for (int r = 0; r < 2; r++) {
        assert_ok(rk_batch_create(&outputs[r], 0));
        set_meta(outputs[r], "{\"metrics\": {\"loss\": [1.0]}}");
    }
    assert_ok(rk_gather_batch(&whole, dispatch, outputs, 1));
    assert_json(rk_batch_meta(whole), "{\"metrics\": {\"loss\": [[1.0], [1.0]]}}");
    destroy_outputs(outputs, 2);
    rk_batch_destroy(whole);
    rk_dispatch_destroy(dispatch);
}

static void test_value_modes_share_one_object(void **state)
{
    static const char *const modes[] = {"ONE_TO_ALL", "ALL_TO_ALL", "RANK_ZERO", "MEGATRON_PP_ONLY"};
    struct rk_batch *batch = make_numbered(3);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(modes); i++) {
        struct rk_dispatch *dispatch = make_dispatch(modes[i], (struct rk_mesh_spec){.dp = 4}, 4);
        struct rk_scatter *scatter;

        assert_ok(rk_scatter_batch(&scatter, dispatch, batch));
        for (int r = 0; r < 4; r++) {
            if (dispatch->chunk_of_rank[r] >= 0)
                assert_ptr_equal(scatter->chunks[dispatch->chunk_of_rank[r]], scatter->chunks[0]);
        }
        assert_rows(scatter->chunks[0], ROWS(0, 1, 2));
        assert_ptr_equal(rk_batch_find(scatter->chunks[0], "x"), rk_batch_find(batch, "x"));
        rk_scatter_destroy(scatter);
        rk_dispatch_destroy(dispatch);
    }
    rk_batch_destroy(batch);
}

/* MEGATRON_COMPUTE: items D0, D1 go to D0 D0 D1 D1 D0 D0 D1 D1; ALL_TO_ALL with splitting requested: item r
 * to rank r.
 */
static void test_items_go_to_their_ranks(void **state)
{
    static const struct {
        const char *mode;
        int64_t num_items;
        int64_t item_of_rank[8];
    } cases[] = {
        {"MEGATRON_COMPUTE", 2, {0, 0, 1, 1, 0, 0, 1, 1}},
        {"MEGATRON_PP_AS_DP", 4, {0, 0, 2, 2, 1, 1, 3, 3}},
        {"DP_COMPUTE", 8, {0, 1, 2, 3, 4, 5, 6, 7}},
        {"ALL_TO_ALL", 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_dispatch *dispatch = make_dispatch(cases[i].mode, tp2_dp2_pp2(), 8);
        struct rk_batch *items[9];
        struct rk_scatter *scatter;

        for (int64_t k = 0; k < 9; k++)
            items[k] = make_batch(1, &k);
        assert_ok(
            rk_scatter_items(&scatter, dispatch, (const struct rk_batch *const *)items, cases[i].num_items));
        for (int r = 0; r < 8; r++)
            assert_rows(scatter->chunks[dispatch->chunk_of_rank[r]], 1, &cases[i].item_of_rank[r]);
        rk_scatter_destroy(scatter);
        assert_fails(rk_scatter_items(&scatter, dispatch, (const struct rk_batch *const *)items,
                                      cases[i].num_items + 1),
                     RK_INVALID_ARGUMENT, "items, got");
        assert_fails(rk_scatter_items(&scatter, dispatch, (const struct rk_batch *const *)items,
                                      cases[i].num_items - 1),
                     RK_INVALID_ARGUMENT, "items, got");
        assert_null(scatter);
        destroy_outputs(items, 9);
        rk_dispatch_destroy(dispatch);
    }
}

static void test_payload_of_the_wrong_kind_is_refused(void **state)
{
    struct rk_dispatch *items = make_dispatch("MEGATRON_COMPUTE", tp2_dp2_pp2(), 8);
    struct rk_dispatch *proto = make_dispatch("MEGATRON_COMPUTE_PROTO", tp2_dp2_pp2(), 8);
    struct rk_batch *batch = make_numbered(2);
    struct rk_scatter *scatter;

    (void)state;
    assert_fails(rk_scatter_batch(&scatter, items, batch), RK_INVALID_ARGUMENT,
                 "MEGATRON_COMPUTE takes a list of 2 items, got one batch");
    assert_fails(rk_scatter_items(&scatter, proto, (const struct rk_batch *const[]){batch, batch}, 2),
                 RK_INVALID_ARGUMENT, "MEGATRON_COMPUTE_PROTO takes one batch, got a list");
    assert_null(scatter);
    rk_batch_destroy(batch);
    rk_dispatch_destroy(items);
    rk_dispatch_destroy(proto);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_megatron_compute_proto_worked_example),
        cmocka_unit_test(test_gather_only_collected_ranks_matter),
        cmocka_unit_test(test_gather_outputs_of_other_forms_are_refused),
        cmocka_unit_test(test_row_identity_of_every_proto_mode),
        cmocka_unit_test(test_pp_as_dp_proto_indivisible_batch_is_refused),
        cmocka_unit_test(test_dp_compute_proto_pads_and_trims),
        cmocka_unit_test(test_dp_compute_metric_keeps_every_rank),
        cmocka_unit_test(test_gather_of_metrics_alone_is_not_trimmed),
        cmocka_unit_test(test_value_modes_share_one_object),
        cmocka_unit_test(test_items_go_to_their_ranks),
        cmocka_unit_test(test_payload_of_the_wrong_kind_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
