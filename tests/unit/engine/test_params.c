/* The parameter table: layout in the flat buffers, parts and copies over tp, shards over dp, files of an
 * export. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "engine/ckpt/ckpt_internal.h"
#include "engine/model/model.h"
#include "engine/optim/trainer.h"

/* The mesh of `spec` over as many ranks as it has, and the coordinates of `rank`. */
static struct rk_mesh *make_mesh(const struct rk_mesh_spec *spec, int32_t rank, struct rk_mesh_coords *coords)
{
    int32_t sizes[] = {spec->tp, spec->cp, spec->dp, spec->pp}, num_ranks = 1;
    struct rk_mesh *mesh;

    for (size_t i = 0; i < RK_ARRAY_LEN(sizes); i++)
        num_ranks *= RK_MAX(sizes[i], 1);
    assert_ok(rk_mesh_create(&mesh, spec, num_ranks));
    assert_true(rk_mesh_find_coords(mesh, rank, coords));
    return mesh;
}

static struct rk_param_table make_table(int32_t dp_size)
{
    struct rk_mesh_coords coords;
    struct rk_mesh *mesh = make_mesh(&(struct rk_mesh_spec){.dp = dp_size}, 0, &coords);
    struct rk_param_table table;

    assert_ok(rk_params_init(&table, mesh, &coords));
    rk_mesh_destroy(mesh);
    return table;
}

/* Plans for the rank with dp 0 and this tp rank. */
static struct rk_status *plan(struct rk_model_core *core, int32_t tp_rank, int32_t tp_size, int32_t dp_size)
{
    struct rk_mesh_coords coords;
    struct rk_mesh *mesh = make_mesh(&(struct rk_mesh_spec){.tp = tp_size, .dp = dp_size}, tp_rank, &coords);
    struct rk_status *st;

    core->head.ops = &rk_head_lm;
    st = rk_model_declare(core, mesh, &coords);

    rk_mesh_destroy(mesh);
    return st;
}

static void add_vector(struct rk_param_table *table, int64_t count, const char *name)
{
    rk_params_add(table, &(struct rk_param_spec){.rows = count, .split_dim = -1}, "%s", name);
}

/* Goal: the layout equals the one computed by hand: reverse order, 64-element alignment, equal shards of
 * lcm(dp, 128). */
static void test_lay_out_of_four_vectors_is_the_computed_one(void **state)
{
    static const int64_t sizes[] = {100, 64, 1, 4096};
    static const int64_t offsets[] = {4224, 4160, 4096, 0};
    static const struct {
        int32_t num_shards;
        int64_t total;
    } totals[] = {{1, 4352}, {2, 4352}, {3, 4608}, {128, 4352}, {256, 4352}, {384, 4608}, {5, 4480}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(totals); i++) {
        struct rk_param_table table = make_table(totals[i].num_shards);

        for (size_t p = 0; p < RK_ARRAY_LEN(sizes); p++)
            add_vector(&table, sizes[p], "v");
        assert_ok(rk_params_lay_out(&table));
        for (size_t p = 0; p < RK_ARRAY_LEN(sizes); p++)
            assert_int_equal(rk_params_placement(&table, (int64_t)p)->offset, offsets[p]);
        assert_int_equal(table.num_elements, totals[i].total);
        assert_int_equal(table.num_elements % totals[i].num_shards, 0);
        rk_params_fini(&table);
    }
}

/* Goal: a malicious configuration cannot overflow the offsets. */
static void test_lay_out_of_too_many_elements_is_resource_exhausted(void **state)
{
    struct rk_param_table table = make_table(1);

    (void)state;
    for (int i = 0; i < 3; i++)
        rk_params_add(&table, &(struct rk_param_spec){.rows = INT32_MAX, .cols = INT32_MAX}, "w%d", i);
    assert_fails(rk_params_lay_out(&table), RK_RESOURCE_EXHAUSTED, "2^63");
    rk_params_fini(&table);
}

static void parse(struct rk_model_core *core, const char *config)
{
    struct rk_json *json;

    *core = (struct rk_model_core){0};
    assert_ok(rk_json_parse(&json, config, strlen(config), "config.json", 0));
    assert_ok(rk_model_config_parse(&core->config, json));
    rk_json_free(json);
}

static const char tiny[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": 131}";

static int64_t find(const struct rk_model_core *core, const char *name)
{
    int64_t i = rk_params_find(&core->params, name);

    if (i < 0)
        fail_msg("no parameter '%s'", name);
    return i;
}

struct part_case {
    const char *label, *name;
    int32_t tp_rank, tp_size;
    int32_t num_parts, part;
    bool is_counted;
    int64_t local_rows, local_cols;
};

static const struct part_case part_cases[] = {
    {"whole", "model.layers.0.self_attn.q_proj.weight", 0, 1, 1, 0, true, 64, 64},
    {"rows", "model.layers.1.self_attn.q_proj.weight", 3, 4, 4, 3, true, 16, 64},
    {"columns", "model.layers.1.self_attn.o_proj.weight", 3, 4, 4, 3, true, 64, 16},
    {"kv, one head a rank", "model.layers.0.self_attn.k_proj.weight", 1, 2, 2, 1, true, 8, 64},
    {"kv, first of two copies", "model.layers.0.self_attn.k_proj.weight", 2, 4, 2, 1, true, 8, 64},
    {"kv, second of two copies", "model.layers.0.self_attn.v_proj.weight", 3, 4, 2, 1, false, 8, 64},
    {"kv, fourth copy of the first", "model.layers.0.self_attn.v_proj.weight", 3, 8, 2, 0, false, 8, 64},
    {"norm, the copy that counts", "model.norm.weight", 0, 4, 1, 0, true, 64, 1},
    {"norm, another copy", "model.norm.weight", 2, 4, 1, 0, false, 64, 1},
    {"vocabulary, padded", "model.embed_tokens.weight", 1, 2, 2, 1, true, 128, 64},
    {"vocabulary, only padding", "lm_head.weight", 3, 4, 4, 3, true, 128, 64},
    {"mlp rows", "model.layers.0.mlp.up_proj.weight", 2, 4, 4, 2, true, 24, 64},
    {"mlp columns", "model.layers.0.mlp.down_proj.weight", 2, 4, 4, 2, true, 64, 24},
};

/* Goal: the part of a tensor on each tp rank, and the copy that counts. */
static void test_plan_of_tp_ranks_gives_parts_and_copies(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(part_cases); i++) {
        const struct part_case *row = &part_cases[i];
        struct rk_model_core core;
        const struct rk_placement *placement;
        int32_t num_parts;

        parse(&core, tiny);
        assert_ok(plan(&core, row->tp_rank, row->tp_size, 1));
        placement = rk_params_placement(&core.params, find(&core, row->name));
        num_parts = rk_params_at(&core.params, find(&core, row->name))->split.num_parts;
        if (num_parts != row->num_parts || placement->part != row->part ||
            placement->is_counted != row->is_counted || placement->local_shape[0] != row->local_rows ||
            placement->local_shape[1] != row->local_cols)
            fail_msg("%s: parts %d part %d counted %d local [%lld, %lld]", row->label, num_parts,
                     placement->part, placement->is_counted, (long long)placement->local_shape[0],
                     (long long)placement->local_shape[1]);
        rk_model_declare_fini(&core);
    }
}

/* Goal: fused projections are one allocation. */
static void test_plan_places_fused_rows_without_gap(void **state)
{
    struct rk_model_core core;
    const struct rk_placement *q, *k, *v, *gate, *up;

    (void)state;
    parse(&core, tiny);
    assert_ok(plan(&core, 0, 2, 3));
    q = rk_params_placement(&core.params, find(&core, "model.layers.1.self_attn.q_proj.weight"));
    k = rk_params_placement(&core.params, find(&core, "model.layers.1.self_attn.k_proj.weight"));
    v = rk_params_placement(&core.params, find(&core, "model.layers.1.self_attn.v_proj.weight"));
    gate = rk_params_placement(&core.params, find(&core, "model.layers.1.mlp.gate_proj.weight"));
    up = rk_params_placement(&core.params, find(&core, "model.layers.1.mlp.up_proj.weight"));
    assert_int_equal(k->offset, q->offset + rk_placement_num_elements(q));
    assert_int_equal(v->offset, k->offset + rk_placement_num_elements(k));
    assert_int_equal(up->offset, gate->offset + rk_placement_num_elements(gate));
    rk_model_declare_fini(&core);
}

struct refused_case {
    const char *label, *config;
    int32_t tp;
    const char *text;
};

#define SIZES(heads, kv, inter)                                                       \
    "{\"model_type\": \"llama\", \"hidden_size\": 840, \"intermediate_size\": " inter \
    ", \"num_hidden_layers\": 1, \"num_attention_heads\": " heads ", \"num_key_value_heads\": " kv "}"

static const struct refused_case refused_cases[] = {
    {"heads", SIZES("14", "2", "80"), 4,
     "num_attention_heads=14 is not divisible by tp=4; the nearest divisor is tp=2"},
    {"kv heads neither way", SIZES("12", "6", "80"), 4, "num_key_value_heads=6 is neither"},
    {"intermediate size", SIZES("12", "4", "90"), 4,
     "intermediate_size=90 is not divisible by tp=4; the nearest divisor is tp=3"},
};

/* Goal: sizes that are not divisible by tp are refused with their names. */
static void test_plan_of_indivisible_sizes_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(refused_cases); i++) {
        struct rk_model_core core;

        parse(&core, refused_cases[i].config);
        assert_fails(plan(&core, 0, refused_cases[i].tp, 1), RK_INVALID_ARGUMENT, refused_cases[i].text);
        rk_model_declare_fini(&core);
    }
}

/* Goal: the table describes published models completely. Method: their exact parameter counts. */
static void test_plan_of_published_models_counts_their_parameters(void **state)
{
    static const struct {
        const char *label, *config;
        int64_t count;
    } models[] = {
        {"Llama-2-7B", "{\"model_type\": \"llama\"}", 6738415616},
        {"Llama-3.1-8B",
         "{\"model_type\": \"llama\", \"vocab_size\": 128256, \"intermediate_size\": 14336, "
         "\"num_key_value_heads\": 8}",
         8030261248},
        {"Llama-3.2-1B",
         "{\"model_type\": \"llama\", \"vocab_size\": 128256, \"hidden_size\": 2048, \"intermediate_size\": "
         "8192,"
         " \"num_hidden_layers\": 16, \"num_key_value_heads\": 8, \"tie_word_embeddings\": true}",
         1235814400},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(models); i++) {
        struct rk_model_core core;
        struct rk_model model = {.core = &core};

        parse(&core, models[i].config);
        assert_ok(plan(&core, 0, 8, 4));
        assert_int_equal(rk_model_num_elements(&model), models[i].count);
        rk_model_declare_fini(&core);
    }
}

/* Every element of the buckets is in one part, every one of the shard's arrays in one bucket. */
static void check_buckets(const struct rk_trainer *trainer, int32_t dp_size, int64_t num_elements)
{
    const struct rk_trainer_group *group = &trainer->groups[RK_GRAD_DENSE];
    int64_t begin = 0, shard = 0;

    for (int64_t b = 0; b < group->buckets.count; b++) {
        const struct rk_bucket *bucket = &group->buckets.items[b];

        assert_int_equal(bucket->begin, begin);
        assert_int_equal(bucket->shard, shard);
        assert_int_equal(bucket->part * dp_size, bucket->count);
        assert_true(bucket->mine >= begin && bucket->mine + bucket->part <= begin + bucket->count);
        begin += bucket->count;
        shard += bucket->part;
    }
    assert_int_equal(begin, num_elements);
    assert_int_equal(shard, trainer->shard_count);
}

/* Marks the elements of a rank's segments and checks that they are in its part of their bucket. */
static void paint_segments(const struct rk_trainer *trainer, uint8_t *painted)
{
    const struct rk_trainer_group *group = &trainer->groups[RK_GRAD_DENSE];

    for (int64_t s = 0; s < group->segments.count; s++) {
        const struct rk_shard_segment *segment = &group->segments.items[s];
        const struct rk_bucket *bucket = &group->buckets.items[segment->bucket];

        assert_true(segment->begin >= bucket->mine);
        assert_true(segment->begin + segment->count <= bucket->mine + bucket->part);
        assert_true(s == 0 || segment->begin > group->segments.items[s - 1].begin);
        assert_int_equal(segment->shard, bucket->shard + segment->begin - bucket->mine);
        for (int64_t e = segment->begin; e < segment->begin + segment->count; e++) {
            assert_int_equal(painted[e], 0);
            painted[e] = (uint8_t)(1 + segment->decays + 2 * segment->is_counted);
        }
    }
}

/* Goal: every element of a rank's table is in exactly one segment of one shard, with the right flags, and
 * those of a frozen parameter in none. Method: paint the segments of all shards over the flat buffer, for one
 * bucket and for many. */
static void test_train_cut_covers_every_element_once(void **state)
{
    static const struct {
        int32_t dp_size;
        int64_t bucket_elements;
    } cases[] = {{1, 0}, {2, 0}, {2, 1000}, {3, 500}, {4, 1}};
    static const char *const frozen[] = {"model.layers.0.mlp.gate_proj.weight",
                                         "model.layers.1.input_layernorm.weight"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_model_core core;
        uint8_t *painted;

        parse(&core, tiny);
        assert_ok(plan(&core, 3, 4, cases[i].dp_size));
        for (size_t f = 0; f < RK_ARRAY_LEN(frozen); f++)
            core.params.params[find(&core, frozen[f])].flags |= RK_PARAM_FROZEN;
        painted = rk_calloc((size_t)core.params.num_elements, 1);
        for (int32_t r = 0; r < cases[i].dp_size; r++) {
            struct rk_trainer trainer = {.config = {.bucket_elements = cases[i].bucket_elements}};

            rk_trainer_cut(&trainer, &core.params,
                           &(struct rk_shard_places){{cases[i].dp_size, cases[i].dp_size}, {r, r}});
            assert_true((trainer.groups[RK_GRAD_DENSE].buckets.count > 1) == (cases[i].bucket_elements > 0));
            assert_int_equal(trainer.groups[RK_GRAD_EXPERT].buckets.count, 0);
            check_buckets(&trainer, cases[i].dp_size, core.params.num_elements);
            paint_segments(&trainer, painted);
            rk_trainer_cut_fini(&trainer);
        }
        for (int64_t p = 0; p < core.params.count; p++) {
            const struct rk_param *param = rk_params_at(&core.params, p);
            const struct rk_placement *placement = rk_params_placement(&core.params, p);
            uint8_t expected = (uint8_t)(1 + (param->rank > 1) + 2 * placement->is_counted);

            if (param->flags & RK_PARAM_FROZEN)
                expected = 0;
            for (int64_t e = 0; e < rk_placement_num_elements(placement); e++)
                assert_int_equal(painted[placement->offset + e], expected);
        }
        rk_free(painted);
        rk_model_declare_fini(&core);
    }
}

/* Rows of a test model, some of them of experts. */
static const struct group_row {
    int64_t rows, cols; /* cols 0: a vector */
    int32_t ep_rank;    /* -1: no expert's */
} group_rows[] = {{10, 13, -1}, {7, 9, 0}, {5, 0, 0},   {7, 9, 1},
                  {33, 0, -1},  {5, 0, 1}, {3, 70, -1}, {64, 3, 1}};

static struct rk_param_table make_groups(const struct rk_mesh *mesh, int32_t rank)
{
    struct rk_param_table table;
    struct rk_mesh_coords coords;

    assert_true(rk_mesh_find_coords(mesh, rank, &coords));
    assert_ok(rk_params_init(&table, mesh, &coords));
    for (size_t i = 0; i < RK_ARRAY_LEN(group_rows); i++)
        rk_params_add(&table,
                      &(struct rk_param_spec){.rows = group_rows[i].rows,
                                              .cols = group_rows[i].cols,
                                              .split_dim = -1,
                                              .is_expert = group_rows[i].ep_rank >= 0,
                                              .ep_rank = group_rows[i].ep_rank},
                      "p%zu", i);
    assert_ok(rk_params_lay_out(&table));
    return table;
}

/* Checks that every group is one range, with its matrices first and equal parts for its ranks. */
static void check_ranges(const struct rk_param_table *table)
{
    int64_t end = 0;

    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        assert_int_equal(table->groups[g].begin, end);
        end += table->groups[g].num_elements;
        assert_int_equal(table->groups[g].num_elements %
                             rk_params_align(rk_grad_group_size((rk_grad_group_t)g, table->mesh)),
                         0);
    }
    assert_int_equal(table->num_elements, end);
    for (int64_t i = 0; i < table->count; i++) {
        const struct rk_placement *placement = rk_params_placement(table, i);
        const struct rk_param *param = rk_params_at(table, i);
        const struct rk_param_range *range = &table->groups[rk_param_grad_group(param)];

        if (!placement->is_held)
            continue;
        assert_true(placement->offset >= range->begin);
        assert_true(placement->offset + rk_placement_num_elements(placement) <=
                    range->begin + range->num_elements);
        for (int64_t j = 0; param->rank == 1 && j < table->count; j++)
            assert_true(rk_params_at(table, j)->rank == 1 || !rk_params_placement(table, j)->is_held ||
                        rk_params_at(table, j)->grad_group != param->grad_group ||
                        rk_params_placement(table, j)->offset < placement->offset);
    }
}

static struct rk_shard_places places_in(const struct rk_mesh *mesh, int32_t rank)
{
    struct rk_shard_places places;
    int32_t members[64];

    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        places.size[g] = rk_mesh_group(mesh, rk_grad_groups[g].axes, rank, members);
        for (places.rank[g] = 0; members[places.rank[g]] != rank;)
            places.rank[g]++;
    }
    return places;
}

/* Adds 1 to the cells of every parameter whose state is in the rank's segments, each of which is in one
 * group.
 */
static void paint_groups(const struct rk_param_table *table, const struct rk_trainer *trainer,
                         int32_t (*cells)[256])
{
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        for (int64_t s = 0; s < trainer->groups[g].segments.count; s++) {
            const struct rk_shard_segment *segment = &trainer->groups[g].segments.items[s];

            assert_true(segment->shard + segment->count <= trainer->shard_count);
            for (int64_t i = 0; i < table->count; i++) {
                const struct rk_placement *placement = rk_params_placement(table, i);
                int64_t begin = RK_MAX(segment->begin, placement->offset),
                        end = RK_MIN(segment->begin + segment->count,
                                     placement->offset + rk_placement_num_elements(placement));

                for (int64_t e = begin; placement->is_held && e < end; e++) {
                    assert_int_equal(rk_param_grad_group(rk_params_at(table, i)), g);
                    cells[i][e - placement->offset] += segment->is_counted;
                }
            }
        }
    }
}

/* Goal: with ep, the ranks of a group have every element of its parameters' state once, for dense parameters
 * and for each expert. Method: paint the segments of all ranks. */
static void test_groups_have_ranges_and_shards_of_their_own(void **state)
{
    static const struct rk_mesh_spec specs[] = {{.dp = 4, .ep = 2},
                                                {.dp = 2, .ep = 2},
                                                {.tp = 2, .dp = 4, .ep = 2, .etp = 1},
                                                {.cp = 2, .dp = 3, .ep = 2}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(specs); i++) {
        struct rk_mesh_coords coords;
        struct rk_mesh *mesh = make_mesh(&specs[i], 0, &coords);
        int32_t cells[RK_ARRAY_LEN(group_rows)][256] = {{0}};

        for (int32_t rank = 0; rank < rk_mesh_num_ranks(mesh); rank++) {
            struct rk_param_table table = make_groups(mesh, rank);
            struct rk_shard_places places = places_in(mesh, rank);
            struct rk_trainer trainer = {.config = {.bucket_elements = 200}};

            check_ranges(&table);
            rk_trainer_cut(&trainer, &table, &places);
            paint_groups(&table, &trainer, cells);
            rk_trainer_cut_fini(&trainer);
            rk_params_fini(&table);
        }
        for (size_t p = 0; p < RK_ARRAY_LEN(group_rows); p++) {
            for (int64_t e = 0; e < group_rows[p].rows * RK_MAX(group_rows[p].cols, 1); e++)
                assert_int_equal(cells[p][e], 1);
        }
        rk_mesh_destroy(mesh);
    }
}

/* Goal: files of an export, by hand: vectors of 4-byte elements, limit 40 bytes. */
static void test_plan_shards_closes_files_at_the_limit(void **state)
{
    static const struct {
        const char *label;
        int64_t sizes[5], shard_of[5], num_shards;
    } rows[] = {
        {"all fit", {1, 2, 3, 2, 2}, {0, 0, 0, 0, 0}, 1},
        {"exactly full", {5, 5, 5, 5, 1}, {0, 0, 1, 1, 2}, 3},
        {"a large one apart, the open file goes on", {5, 11, 5, 5, 5}, {1, 0, 1, 2, 2}, 3},
        {"all large", {11, 12, 13, 14, 15}, {0, 1, 2, 3, 4}, 5},
        {"large at the end", {5, 5, 1, 1, 11}, {0, 0, 2, 2, 1}, 3},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct rk_param_table table = make_table(1);
        int64_t shard_of[5];

        for (int p = 0; p < 5; p++)
            add_vector(&table, rows[i].sizes[p], "v");
        assert_int_equal(rk_hf_assign_shards(&table, RK_DTYPE_F32, 40, shard_of), rows[i].num_shards);
        for (int p = 0; p < 5; p++) {
            if (shard_of[p] != rows[i].shard_of[p])
                fail_msg("%s: parameter %d in file %lld", rows[i].label, p, (long long)shard_of[p]);
        }
        rk_params_fini(&table);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lay_out_of_four_vectors_is_the_computed_one),
        cmocka_unit_test(test_lay_out_of_too_many_elements_is_resource_exhausted),
        cmocka_unit_test(test_plan_of_tp_ranks_gives_parts_and_copies),
        cmocka_unit_test(test_plan_places_fused_rows_without_gap),
        cmocka_unit_test(test_plan_of_indivisible_sizes_is_refused),
        cmocka_unit_test(test_plan_of_published_models_counts_their_parameters),
        cmocka_unit_test(test_train_cut_covers_every_element_once),
        cmocka_unit_test(test_groups_have_ranges_and_shards_of_their_own),
        cmocka_unit_test(test_plan_shards_closes_files_at_the_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
