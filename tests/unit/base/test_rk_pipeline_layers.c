/* Layer tables: the options' formulas, rejected options, and explicit tables. */
#include "base/layout/rk_pipeline.h"

#include <string.h>

#include "base/rk_rng.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

/* "0-2 4-6 | 2-4 6-8": chunks of a stage separated by spaces, stages by bars. */
static void format_table(const struct rk_pipeline *pipeline, struct rk_str *out)
{
    for (int32_t stage = 0; stage < rk_pipeline_num_stages(pipeline); stage++) {
        rk_str_append(out, stage ? " |" : "");
        for (int32_t chunk = 0; chunk < rk_pipeline_num_chunks(pipeline); chunk++) {
            struct rk_pipeline_chunk at = rk_pipeline_get_chunk(pipeline, stage, chunk);

            rk_str_appendf(out, "%s%d-%d", stage || chunk ? " " : "", at.layer_begin, at.layer_end);
        }
    }
}

/* Goal: each option's table, by hand from Megatron-LM's offsets. */
static void test_pipeline_layers_tables(void **state)
{
    static const struct {
        const char *label;
        struct rk_pipeline_spec spec;
        const char *expected;
    } cases[] = {
        {"none", {.num_layers = 3}, "0-3"},
        {"even", {.num_layers = 8, .pp = 4}, "0-2 | 2-4 | 4-6 | 6-8"},
        {"chunks", {.num_layers = 8, .pp = 2, .vpp = 2}, "0-2 4-6 | 2-4 6-8"},
        {"first", {.num_layers = 10, .pp = 3, .num_layers_in_first_pipeline_stage = 2}, "0-2 | 2-6 | 6-10"},
        {"last",
         {.num_layers = 61, .pp = 16, .num_layers_in_last_pipeline_stage = 1},
         "0-4 | 4-8 | 8-12 | 12-16 | 16-20 | 20-24 | 24-28 | 28-32 | 32-36 | 36-40 | 40-44 | 44-48 | 48-52 | "
         "52-56 | 56-60 | 60-61"},
        {"both",
         {.num_layers = 9,
          .pp = 3,
          .num_layers_in_first_pipeline_stage = 2,
          .num_layers_in_last_pipeline_stage = 1},
         "0-2 | 2-8 | 8-9"},
        {"both, no middle",
         {.num_layers = 5,
          .pp = 2,
          .num_layers_in_first_pipeline_stage = 3,
          .num_layers_in_last_pipeline_stage = 2},
         "0-3 | 3-5"},
        /* chunk k at k * (first/v + mid/v + last/v) = 8k: 1 + 3 + 3 + 1 layers per chunk */
        {"both with chunks",
         {.num_layers = 16,
          .pp = 4,
          .vpp = 2,
          .num_layers_in_first_pipeline_stage = 2,
          .num_layers_in_last_pipeline_stage = 2},
         "0-1 8-9 | 1-4 9-12 | 4-7 12-15 | 7-8 15-16"},
        {"first with chunks",
         {.num_layers = 12, .pp = 3, .vpp = 2, .num_layers_in_first_pipeline_stage = 4},
         "0-2 6-8 | 2-4 8-10 | 4-6 10-12"},
        {"embedding",
         {.num_layers = 7, .pp = 4, .account_for_embedding_in_pipeline_split = true},
         "0-1 | 1-3 | 3-5 | 5-7"},
        {"loss",
         {.num_layers = 7, .pp = 4, .account_for_loss_in_pipeline_split = true},
         "0-2 | 2-4 | 4-6 | 6-7"},
        {"embedding and loss with chunks",
         {.num_layers = 14,
          .pp = 4,
          .vpp = 2,
          .account_for_embedding_in_pipeline_split = true,
          .account_for_loss_in_pipeline_split = true},
         "0-1 7-9 | 1-3 9-11 | 3-5 11-13 | 5-7 13-14"},
        {"stages with the embedding and the head only",
         {.num_layers = 2,
          .pp = 4,
          .account_for_embedding_in_pipeline_split = true,
          .account_for_loss_in_pipeline_split = true},
         "0-0 | 0-1 | 1-2 | 2-2"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_pipeline *pipeline;
        struct rk_str text = {0};

        assert_ok(rk_pipeline_create(&pipeline, &cases[i].spec));
        format_table(pipeline, &text);
        if (strcmp(rk_str_text(&text), cases[i].expected) != 0)
            fail_msg("%s: %s", cases[i].label, rk_str_text(&text));
        rk_str_fini(&text);
        rk_pipeline_destroy(pipeline);
    }
}

/* Goal: invalid sizes are rejected with the nearest valid layout. */
static void test_pipeline_layers_refused(void **state)
{
    static const struct {
        struct rk_pipeline_spec spec;
        const char *nearest;
    } cases[] = {
        {{.num_layers = 30, .pp = 4}, "nearest layout: pp=4 num_layers_in_last_pipeline_stage=6"},
        {{.num_layers = 61, .pp = 16}, "nearest layout: pp=16 num_layers_in_last_pipeline_stage=1"},
        {{.num_layers = 3, .pp = 4}, "nearest layout: pp=3"},
        {{.num_layers = 8, .pp = 1, .vpp = 2}, "nearest layout: pp=1"},
        {{.num_layers = 30, .pp = 4, .vpp = 2},
         "nearest layout: pp=4 vpp=2 num_layers_in_last_pipeline_stage=6"},
        {{.num_layers = 9, .pp = 3, .vpp = 2}, "nearest layout: pp=3"},
        {{.num_layers = 8, .pp = 1, .num_layers_in_first_pipeline_stage = 4}, "nearest layout: pp=1"},
        {{.num_layers = 8, .pp = 2, .num_layers_in_first_pipeline_stage = 8}, "nearest layout: pp=2"},
        {{.num_layers = 8,
          .pp = 2,
          .num_layers_in_first_pipeline_stage = 3,
          .num_layers_in_last_pipeline_stage = 4},
         "nearest layout: pp=2"},
        {{.num_layers = 8, .pp = 2, .vpp = 2, .num_layers_in_first_pipeline_stage = 3},
         "nearest layout: pp=2 vpp=2"},
        {{.num_layers = 8,
          .pp = 2,
          .num_layers_in_first_pipeline_stage = 4,
          .account_for_loss_in_pipeline_split = true},
         "nearest layout: pp=2"},
        {{.num_layers = 8, .pp = 2, .account_for_embedding_in_pipeline_split = true}, "nearest layout: pp=2"},
        /* the embedding counted, chunk 1 of stage 0 has a layer, but 4 positions need one each */
        {{.num_layers = 2, .pp = 2, .vpp = 2}, "nearest layout: pp=2"},
    };
    struct rk_pipeline *pipeline;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        assert_fails(rk_pipeline_create(&pipeline, &cases[i].spec), RK_INVALID_ARGUMENT, cases[i].nearest);
        assert_null(pipeline);
    }
    assert_fails(rk_pipeline_create(&pipeline, &(struct rk_pipeline_spec){.num_layers = 0}),
                 RK_INVALID_ARGUMENT, "num_layers=0");
    assert_fails(rk_pipeline_create(&pipeline, &(struct rk_pipeline_spec){.num_layers = 8, .pp = -1}),
                 RK_INVALID_ARGUMENT, "pp=-1");
    assert_fails(rk_pipeline_create(&pipeline, &(struct rk_pipeline_spec){.num_layers = 8, .vpp = 257}),
                 RK_INVALID_ARGUMENT, "vpp=257");
    assert_fails(rk_pipeline_create(&pipeline,
                                    &(struct rk_pipeline_spec){
                                        .num_layers = 8, .pp = 2, .num_layers_in_last_pipeline_stage = 9}),
                 RK_INVALID_ARGUMENT, "num_layers_in_last_pipeline_stage=9");
}

static void test_pipeline_layers_explicit(void **state)
{
    const struct rk_pipeline_chunk good[] = {
        {0, 3, false, true}, {4, 5, true, false}, {3, 4, true, true}, {5, 5, 0, 0}};
    struct rk_pipeline_chunk bad[4];
    struct rk_pipeline *pipeline;

    (void)state;
    assert_ok(rk_pipeline_create_explicit(&pipeline, 5, 2, 2, good));
    assert_true(rk_pipeline_get_chunk(pipeline, 0, 0).has_embed);
    assert_false(rk_pipeline_get_chunk(pipeline, 0, 0).has_head);
    assert_false(rk_pipeline_get_chunk(pipeline, 0, 1).has_embed);
    assert_false(rk_pipeline_get_chunk(pipeline, 1, 0).has_head);
    assert_true(rk_pipeline_get_chunk(pipeline, 1, 1).has_head);
    assert_int_equal(rk_pipeline_num_stage_layers(pipeline, 0), 4);
    assert_int_equal(rk_pipeline_find_layer(pipeline, 4).stage, 0);
    assert_int_equal(rk_pipeline_find_layer(pipeline, 4).chunk, 1);
    rk_pipeline_destroy(pipeline);

    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        memcpy(bad, good, sizeof(bad));
        bad[i].layer_begin -= 1; /* overlaps the previous chunk */
        assert_fails(rk_pipeline_create_explicit(&pipeline, 5, 2, 2, bad), RK_INVALID_ARGUMENT, "has layers");
        memcpy(bad, good, sizeof(bad));
        bad[i].layer_end += 1; /* overlaps the next chunk or ends outside */
        assert_fails(rk_pipeline_create_explicit(&pipeline, 5, 2, 2, bad), RK_INVALID_ARGUMENT, "has layers");
        assert_null(pipeline);
    }
    assert_fails(rk_pipeline_create_explicit(&pipeline, 6, 2, 2, good), RK_INVALID_ARGUMENT,
                 "ends at layer 5 of 6");
}

/* Every layer is in exactly the chunk that find_layer returns, and positions are in order. */
static void check_cover(const struct rk_pipeline *pipeline)
{
    int32_t pp = rk_pipeline_num_stages(pipeline), next = 0, sum = 0;

    for (int32_t position = 0; position < pp * rk_pipeline_num_chunks(pipeline); position++) {
        struct rk_pipeline_chunk at = rk_pipeline_get_chunk(pipeline, position % pp, position / pp);

        assert_int_equal(at.layer_begin, next);
        for (; next < at.layer_end; next++) {
            assert_int_equal(rk_pipeline_find_layer(pipeline, next).stage, position % pp);
            assert_int_equal(rk_pipeline_find_layer(pipeline, next).chunk, position / pp);
        }
    }
    assert_int_equal(next, rk_pipeline_num_layers(pipeline));
    for (int32_t stage = 0; stage < pp; stage++)
        sum += rk_pipeline_num_stage_layers(pipeline, stage);
    assert_int_equal(sum, next);
}

/* Goal: for all options the table covers all layers, or the suggested layout does. */
static void test_pipeline_layers_random_specs(void **state)
{
    struct rk_rng rng;
    int num_made = 0, num_refused = 0;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 1);
    for (int i = 0; i < 4000; i++) {
        struct rk_pipeline_spec nearest,
            spec = {
                .num_layers = 1 + (int32_t)rk_rng_next_below(&rng, 40),
                .pp = (int32_t)rk_rng_next_below(&rng, 9),
                .vpp = (int32_t)rk_rng_next_below(&rng, 4),
                .account_for_embedding_in_pipeline_split = rk_rng_next_below(&rng, 4) == 0,
                .account_for_loss_in_pipeline_split = rk_rng_next_below(&rng, 4) == 0,
            };
        struct rk_pipeline *pipeline;
        struct rk_status *st;

        if (rk_rng_next_below(&rng, 3) == 0)
            spec.num_layers_in_first_pipeline_stage = (int32_t)rk_rng_next_below(&rng, spec.num_layers + 1);
        if (rk_rng_next_below(&rng, 3) == 0)
            spec.num_layers_in_last_pipeline_stage = (int32_t)rk_rng_next_below(&rng, spec.num_layers + 1);
        st = rk_pipeline_create(&pipeline, &spec);
        num_refused += st != NULL;
        num_made += st == NULL;
        if (st) {
            assert_int_equal(rk_status_code(st), RK_INVALID_ARGUMENT);
            rk_status_free(st);
            assert_true(rk_pipeline_nearest(&spec, &nearest));
            assert_true(nearest.pp == RK_MIN(RK_MAX(spec.pp, 1), spec.num_layers));
            assert_ok(rk_pipeline_create(&pipeline, &nearest));
        }
        check_cover(pipeline);
        rk_pipeline_destroy(pipeline);
    }
    assert_true(num_made > 300);
    assert_true(num_refused > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_layers_tables),
        cmocka_unit_test(test_pipeline_layers_refused),
        cmocka_unit_test(test_pipeline_layers_explicit),
        cmocka_unit_test(test_pipeline_layers_random_specs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
