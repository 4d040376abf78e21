/* The comparison of two checkpoints by verify-layout: whole tensors, differences, verdicts, causes; and the
 * layouts with which a job is compared. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_shard.h"
#include "base/format/rk_safetensors.h"
#include "cmd/verify_layout_internal.h"
#include "rl/rk_job.h"
#include "tests/support/test.h"

/* --- checkpoints of a test --- */

#define VALUES_MAX 16

struct stored {
    const char *name, *described; /* of rankd.pieces */
    int64_t count;
    float values[VALUES_MAX];
};

static void write_shard(const char *part_dir, int shard, const struct stored *tensors, int64_t count)
{
    struct rk_st_entry entries[VALUES_MAX];
    struct rk_json *metadata = rk_json_new_object();
    struct rk_str pieces = {0};
    char *path = rk_format("%s/dist_ckpt/shard_%05d.safetensors", part_dir, shard);
    struct rk_st_writer *writer;

    rk_str_append(&pieces, "{");
    for (int64_t i = 0; i < count; i++) {
        entries[i] = (struct rk_st_entry){
            .name = tensors[i].name, .dtype = RK_DTYPE_F32, .rank = 1, .shape = {tensors[i].count}};
        rk_str_appendf(&pieces, "%s\"%s\": %s", i ? ", " : "", tensors[i].name, tensors[i].described);
    }
    rk_str_append(&pieces, "}");
    rk_json_set(metadata, RK_CKPT_PIECES_KEY, rk_json_new_string(rk_str_text(&pieces)));
    assert_ok(rk_st_writer_create(&writer, path, entries, count, metadata));
    for (int64_t i = 0; i < count; i++)
        assert_ok(
            rk_st_writer_write(writer, i, 0, tensors[i].values, (size_t)tensors[i].count * sizeof(float)));
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    rk_str_fini(&pieces);
    rk_json_free(metadata);
    rk_free(path);
}

/* A part with these shards; rk_free its path. */
static char *write_part(const struct stored *const *shards, const int64_t *counts, int num_shards)
{
    static int number;
    char *name = rk_format("step%d", number++), *above = rk_test_temp_path(name);
    char *dir = rk_path_join(above, "actor"); /* the name of a part is its role */
    char *files = rk_path_join(dir, "dist_ckpt");
    struct rk_ckpt_manifest manifest = {.role = rk_strdup("actor"), .global_step = 1};

    assert_int_equal(mkdir(above, 0777), 0);
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_int_equal(mkdir(files, 0777), 0);
    for (int i = 0; i < num_shards; i++) {
        char *file = rk_format("dist_ckpt/shard_%05d.safetensors", i);

        write_shard(dir, i, shards[i], counts[i]);
        assert_ok(rk_ckpt_manifest_add_file(&manifest, dir, file));
        rk_free(file);
    }
    rk_array_append(&manifest.contents, rk_strdup("model"));
    assert_ok(rk_ckpt_manifest_write(&manifest, dir));
    rk_ckpt_manifest_fini(&manifest);
    rk_free(files);
    rk_free(above);
    rk_free(name);
    return dir;
}

#define PIECE(shape, box, runs) "{\"global_shape\": [" shape "], \"box\": [" box "], \"runs\": [" runs "]}"

/* --- whole tensors --- */

/* Goal: a matrix split by columns and a vector split by runs are reassembled, starting at any row, with the
 * shard of every element. */
static void test_gathered_tensors_are_whole(void **state)
{
    static const struct stored first[] = {
        {"matrix", PIECE("3, 4", "[0, 3], [0, 1]", "[0, 3]"), 3, {0, 4, 8}},
        {"vector", PIECE("5", "[0, 5]", "[0, 1], [3, 5]"), 3, {100, 103, 104}},
    };
    static const struct stored second[] = {
        {"matrix", PIECE("3, 4", "[0, 3], [1, 4]", "[0, 9]"), 9, {1, 2, 3, 5, 6, 7, 9, 10, 11}},
        {"vector", PIECE("5", "[0, 5]", "[1, 3]"), 2, {101, 102}},
    };
    const struct stored *const shards[] = {first, second};
    char *dir = write_part(shards, (const int64_t[]){2, 2}, 2);
    struct rk_gathered *gathered;
    const struct rk_gathered_tensor *matrix, *vector;
    double values[12];
    int32_t owners[12];

    (void)state;
    assert_ok(rk_gathered_open(&gathered, dir));
    assert_int_equal(rk_gathered_num_shards(gathered), 2);
    assert_int_equal(rk_gathered_count(gathered), 2);
    matrix = rk_gathered_find(gathered, "matrix");
    vector = rk_gathered_find(gathered, "vector");
    assert_ptr_equal(matrix, rk_gathered_at(gathered, 0));
    assert_null(rk_gathered_find(gathered, "other"));
    assert_int_equal(matrix->rows, 3);
    assert_int_equal(matrix->cols, 4);
    assert_false(matrix->is_vector);
    assert_true(vector->is_vector);
    for (int64_t begin = 0; begin < 3; begin++) {
        assert_ok(rk_gathered_read(gathered, matrix, begin, 3 - begin, values, owners));
        for (int64_t i = 0; i < (3 - begin) * 4; i++) {
            assert_true(values[i] == (double)(begin * 4 + i));
            assert_int_equal(owners[i], i % 4 > 0);
        }
    }
    assert_ok(rk_gathered_read(gathered, vector, 0, 5, values, owners));
    for (int64_t i = 0; i < 5; i++)
        assert_true(values[i] == (double)(100 + i));
    rk_gathered_close(gathered);
    rk_free(dir);
}

/* Goal: shards without a description of their content, or that do not cover a tensor exactly once, are
 * refused by name. */
static void test_gathered_refuses_damaged_parts(void **state)
{
    static const struct {
        const char *label;
        struct stored first, second;
        const char *message;
    } cases[] = {
        {"a gap",
         {"t", PIECE("4", "[0, 4]", "[0, 1]"), 1, {0}},
         {"t", PIECE("4", "[0, 4]", "[2, 4]"), 2, {0}},
         "tensor 't': 1 of 4 elements of rows 0 to 3 are in no shard"},
        {"an element twice",
         {"t", PIECE("4", "[0, 4]", "[0, 3]"), 3, {0}},
         {"t", PIECE("4", "[0, 4]", "[2, 4]"), 2, {0}},
         "same elements"},
        {"another shape",
         {"t", PIECE("4", "[0, 4]", "[0, 2]"), 2, {0}},
         {"t", PIECE("5", "[0, 5]", "[2, 5]"), 3, {0}},
         "shape differs"},
        {"a box outside",
         {"t", PIECE("4", "[0, 5]", "[0, 5]"), 5, {0}},
         {"u", PIECE("1", "[0, 1]", "[0, 1]"), 1, {0}},
         "box is not inside the tensor"},
        {"runs that are too long",
         {"t", PIECE("4", "[0, 4]", "[0, 4]"), 3, {0}},
         {"u", PIECE("1", "[0, 1]", "[0, 1]"), 1, {0}},
         "runs and shape have different sizes"},
        {"runs that go back",
         {"t", PIECE("4", "[0, 4]", "[2, 4], [0, 2]"), 4, {0}},
         {"u", PIECE("1", "[0, 1]", "[0, 1]"), 1, {0}},
         "runs do not ascend inside the box"},
        {"nothing",
         {"t", "null", 4, {0}},
         {"u", PIECE("1", "[0, 1]", "[0, 1]"), 1, {0}},
         "expected global_shape and box"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const struct stored *const shards[] = {&cases[i].first, &cases[i].second};
        char *dir = write_part(shards, (const int64_t[]){1, 1}, 2);
        struct rk_gathered *gathered;
        struct rk_status *st = rk_gathered_open(&gathered, dir);
        double values[VALUES_MAX];
        int32_t owners[VALUES_MAX];

        print_message("%s\n", cases[i].label);
        if (!st) {
            const struct rk_gathered_tensor *tensor = rk_gathered_find(gathered, "t");

            st = rk_gathered_read(gathered, tensor, 0, tensor->rows, values, owners);
        }
        assert_string_equal(rk_status_reason(st), "CHECKPOINT_DAMAGED");
        assert_message_contains(st, cases[i].message);
        rk_gathered_close(gathered);
        rk_free(dir);
    }
}

/* --- verdicts --- */

static struct rk_verify_row *add_row(struct rk_verify_rows *rows, rk_verify_kind_t kind, const char *name,
                                     double actual, double expected)
{
    struct rk_verify_row *row = rk_verify_rows_add(rows, kind, "actor", name);

    rk_difference_add(&row->difference, &actual, &expected, 1);
    return row;
}

/* Goal: errors are relative to the row's largest value, with a floor for tiny rows, and a NaN never agrees.
 */
static void test_judge_scales_and_floors(void **state)
{
    static const struct {
        rk_verify_kind_t kind;
        double actual, expected;
        bool agrees;
    } cases[] = {
        {RK_VERIFY_OUTPUT, 100.0009, 100, true},
        {RK_VERIFY_OUTPUT, 100.0011, 100, false},
        {RK_VERIFY_METRIC, 1e-9, 0, true},
        {RK_VERIFY_METRIC, 1e-7, 0, false},
        {RK_VERIFY_GRADIENT, 10, 10, true}, /* the largest */
        {RK_VERIFY_GRADIENT, 1e-8, 0, true},
        {RK_VERIFY_GRADIENT, 1.2e-8, 0, false},
        {RK_VERIFY_PARAMETER, 0, 0, true},
        {RK_VERIFY_PARAMETER, 1e-20, 0, false},
        {RK_VERIFY_OUTPUT, NAN, 1, false},
        {RK_VERIFY_OUTPUT, 1, NAN, false},
        {RK_VERIFY_OUTPUT, INFINITY, INFINITY, false},
    };
    const struct rk_verify_measure measure = {.tolerance = 1e-5};
    struct rk_verify_rows rows = {0};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        add_row(&rows, cases[i].kind, "t", cases[i].actual, cases[i].expected);
    rk_verify_judge(&rows, &measure);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        if (rows.items.items[i].agrees != cases[i].agrees)
            fail_msg("case %zu: error %g", i, rows.items.items[i].relative);
    }
    assert_ptr_equal(rk_verify_first(&rows), &rows.items.items[1]);
    assert_true(isinf(rk_verify_error(rk_verify_worst(&rows, &measure), &measure)));
    rk_verify_rows_fini(&rows);
}

/* Goal: for bfloat16 a single large deviation passes if the other values are right, and many small deviations
 * fail. */
static void test_judge_by_mean_square(void **state)
{
    const struct rk_verify_measure measure = {.by_mean_square = true, .tolerance = 1e-2};
    struct rk_verify_rows rows = {0};
    struct rk_verify_row *one = rk_verify_rows_add(&rows, RK_VERIFY_OUTPUT, "actor", "one"), *many;
    double ones[100], actual[100], wide[100];

    (void)state;
    for (int i = 0; i < 100; i++) {
        ones[i] = 1;
        actual[i] = i == 50 ? 1.9 : 1;
        wide[i] = i % 2 ? 1.2 : 0.8;
    }
    rk_difference_add(&one->difference, actual, ones, 100);
    many = rk_verify_rows_add(&rows, RK_VERIFY_OUTPUT, "actor", "many");
    rk_difference_add(&many->difference, wide, ones, 100);
    rk_verify_judge(&rows, &measure);
    assert_below("one", fabs(rows.items.items[0].mean_square - 0.0081), 1e-12);
    assert_int_equal(rows.items.items[0].difference.worst, 50);
    assert_true(rows.items.items[0].agrees);
    assert_below("many", fabs(rows.items.items[1].mean_square - 0.04), 1e-12);
    assert_false(rows.items.items[1].agrees);
    rk_verify_rows_fini(&rows);
}

/* --- parameters after a step --- */

#define ONE_OF(name) name, PIECE("2", "[0, 2]", "[0, 2]"), 2

/* Goal: AdamW's updates from gradients near 0 do not count as a difference of the optimizer; other
 * differences do. The first step moves by lr * g / (|g| + eps): here 1e-9 and -1e-9 move it by about 0.09 lr
 * each way. */
static void test_compare_takes_off_what_the_step_makes_of_gradients(void **state)
{
    static const float lr = 0.1F, eps = 1e-8F, tiny = 1e-9F;
    const float move = lr * tiny / (tiny + eps);
    const struct rk_verify_step step = {.lr = lr, .eps = eps, .actual_scale = 1, .expected_scale = 1};
    const struct rk_verify_measure measure = {.tolerance = 1e-5};

    (void)state;
    for (int wrong = -1; wrong < 2; wrong++) {
        const struct stored actual[] = {
            {ONE_OF("gradient.model.norm.weight"), {1, tiny}},
            {ONE_OF("model.norm.weight"), {0.9F, 1 - move + (float)wrong * 0.001F}},
        };
        const struct stored expected[] = {
            {ONE_OF("gradient.model.norm.weight"), {1, -tiny}},
            {ONE_OF("model.norm.weight"), {0.9F, 1 + move}},
        };
        const struct stored *const sides[2][1] = {{actual}, {expected}};
        struct rk_verify_rows rows = {0};
        struct rk_gathered *gathered[2];

        for (int side = 0; side < 2; side++) {
            char *dir = write_part(sides[side], (const int64_t[]){2}, 1);

            assert_ok(rk_gathered_open(&gathered[side], dir));
            rk_free(dir);
        }
        assert_ok(rk_verify_compare(&rows, "actor", gathered[0], gathered[1], &step));
        rk_verify_judge(&rows, &measure);
        assert_int_equal(rows.items.count, 2);
        assert_int_equal(rows.items.items[0].kind, RK_VERIFY_GRADIENT);
        assert_string_equal(rows.items.items[0].name, "model.norm.weight");
        assert_true(rows.items.items[0].agrees);
        assert_int_equal(rows.items.items[1].agrees, !wrong);
        if (wrong)
            assert_int_equal(rows.items.items[1].difference.worst, 1);
        rk_verify_rows_fini(&rows);
        rk_gathered_close(gathered[0]);
        rk_gathered_close(gathered[1]);
    }
}

/* Goal: layers are in the order of the model; a tensor missing on one side is an error, and so is a
 * comparison of all-zero tensors. */
static void test_compare_orders_and_refuses(void **state)
{
    static const struct stored whole[] = {
        {ONE_OF("gradient.lm_head.weight"), {1, 1}},
        {ONE_OF("gradient.model.embed_tokens.weight"), {1, 1}},
        {ONE_OF("gradient.model.layers.10.a"), {1, 1}},
        {ONE_OF("gradient.model.layers.9.a"), {1, 1}},
        {ONE_OF("lm_head.weight"), {1, 1}},
        {ONE_OF("model.embed_tokens.weight"), {1, 1}},
        {ONE_OF("model.layers.10.a"), {1, 1}},
        {ONE_OF("model.layers.9.a"), {1, 1}},
    };
    static const struct stored zeros[] = {{ONE_OF("gradient.a"), {0, 0}}, {ONE_OF("a"), {1, 1}}};
    static const char *const order[] = {"model.embed_tokens.weight", "model.layers.9.a", "model.layers.10.a",
                                        "lm_head.weight"};
    static const struct rk_verify_step step = {.lr = 1, .eps = 1e-8, .actual_scale = 1, .expected_scale = 1};
    const struct stored *const shards[] = {whole}, *const nothing[] = {zeros};
    char *dir = write_part(shards, (const int64_t[]){8}, 1);
    char *part = write_part(shards, (const int64_t[]){7}, 1);
    char *flat = write_part(nothing, (const int64_t[]){2}, 1);
    struct rk_gathered *all, *some, *zero;
    struct rk_verify_rows rows = {0};

    (void)state;
    assert_ok(rk_gathered_open(&all, dir));
    assert_ok(rk_gathered_open(&some, part));
    assert_ok(rk_gathered_open(&zero, flat));
    assert_ok(rk_verify_compare(&rows, "actor", all, all, &step));
    for (size_t i = 0; i < RK_ARRAY_LEN(order); i++)
        assert_string_equal(rows.items.items[i].name, order[i]);
    assert_message_contains(rk_verify_compare(&rows, "actor", some, all, &step), "'model.layers.9.a'");
    assert_message_contains(rk_verify_compare(&rows, "actor", zero, zero, &step),
                            "gradients of the reference are 0");
    rk_verify_rows_fini(&rows);
    rk_gathered_close(all);
    rk_gathered_close(some);
    rk_gathered_close(zero);
    rk_free(flat);
    rk_free(part);
    rk_free(dir);
}

/* --- causes --- */

/* Rows of a model; bit i of `bad`: row i differs. All gradients are `factor` times the expected ones where
 * they do. */
static const struct {
    rk_verify_kind_t kind;
    const char *name;
    bool is_vector;
} model_rows[] = {
    {RK_VERIFY_OUTPUT, "old_log_probs", false},
    {RK_VERIFY_GRADIENT, "model.embed_tokens.weight", false},
    {RK_VERIFY_GRADIENT, "model.layers.0.input_layernorm.weight", true},
    {RK_VERIFY_GRADIENT, "model.layers.0.self_attn.k_proj.weight", false},
    {RK_VERIFY_GRADIENT, "model.layers.0.mlp.up_proj.weight", false},
    {RK_VERIFY_PARAMETER, "model.layers.0.mlp.up_proj.weight", false},
    {RK_VERIFY_METRIC, "actor/grad_norm", false},
};
enum { LOG_PROBS = 1, EMBED = 2, NORM = 4, KEYS = 8, UP = 16, UP_AFTER = 32, METRIC = 64, GRADS = 30 };

struct cause_case {
    const char *label;
    unsigned bad;
    double factor; /* of bad gradients */
    struct rk_mesh_spec mesh;
    bool sequence_parallel, is_tied;
    int64_t num_kv_heads;
    int32_t shard;            /* the shard that has all errors; -1: all shards */
    const char *cause, *part; /* expected cause (NULL: none), and part of the advice */
};

static void fill_rows(struct rk_verify_rows *rows, const struct cause_case *c, int32_t num_shards)
{
    rows->num_shards = num_shards;
    for (size_t i = 0; i < RK_ARRAY_LEN(model_rows); i++) {
        bool is_bad = c->bad >> i & 1;
        struct rk_verify_row *row =
            add_row(rows, model_rows[i].kind, model_rows[i].name, is_bad ? c->factor : 1, 1);

        row->is_vector = model_rows[i].is_vector;
        row->shard_errors = rk_calloc((size_t)num_shards + 1, sizeof(double));
        for (int32_t shard = 0; shard < num_shards; shard++) {
            if (is_bad && (c->shard < 0 || c->shard == shard))
                row->shard_errors[shard] = fabs(c->factor - 1);
        }
    }
}

static const struct cause_case cause_cases[] = {
    {"forward, tp alone",
     LOG_PROBS | GRADS,
     1.5,
     {.tp = 2},
     true,
     false,
     0,
     -1,
     "tensor_parallel",
     "tensor parallelism (tp)"},
    {"forward, cp beside dp",
     LOG_PROBS | GRADS,
     1.5,
     {.cp = 2, .dp = 2},
     true,
     false,
     0,
     -1,
     "context_parallel",
     "forward pass"},
    {"forward, several",
     LOG_PROBS | GRADS,
     1.5,
     {.tp = 2, .pp = 2},
     true,
     false,
     0,
     -1,
     NULL,
     "tp, cp or pp"},
    {"forward, dp alone",
     LOG_PROBS,
     1.5,
     {.dp = 4},
     true,
     false,
     0,
     -1,
     "micro_batches",
     "packed into micro-batches"},
    {"norms with sp",
     NORM | METRIC,
     0.5,
     {.tp = 2, .pp = 2},
     true,
     false,
     0,
     -1,
     "sequence_parallel",
     "norms and biases"},
    {"norms without sp",
     NORM,
     0.5,
     {.tp = 2, .pp = 2},
     false,
     false,
     0,
     -1,
     "tensor_parallel",
     "norms and biases"},
    {"tied embedding",
     EMBED,
     0.5,
     {.tp = 2, .pp = 2},
     true,
     true,
     0,
     -1,
     "pipeline_parallel",
     "the first and the last stage"},
    {"embedding", EMBED, 0.5, {.tp = 2, .pp = 2}, true, false, 0, -1, "tensor_parallel", "vocabulary"},
    {"kv heads",
     KEYS,
     0.5,
     {.tp = 4, .dp = 2},
     true,
     false,
     2,
     -1,
     "tensor_parallel",
     "the same key-value head"},
    {"keys with enough heads", KEYS, 0.5, {.tp = 2, .dp = 2}, true, false, 2, -1, NULL, ""},
    {"a sum over dp twice",
     GRADS,
     2,
     {.tp = 4, .dp = 2},
     true,
     false,
     0,
     -1,
     "data_parallel",
     "2 times the expected one"},
    {"a mean over cp", GRADS, 0.25, {.tp = 2, .cp = 4}, true, false, 0, -1, "context_parallel", "0.25 times"},
    {"a stage", UP | KEYS, 1.5, {.tp = 2, .pp = 2}, true, false, 0, 2, "rank", "pp 1, tp 0"},
    {"one replica", UP, 1.5, {.dp = 4}, true, false, 0, 3, "rank", "dp 3: one rank"},
    {"one axis", UP, 1.5, {.dp = 4}, true, false, 0, -1, "data_parallel", "data parallelism (dp)"},
    {"optimizer", UP_AFTER, 1.5, {.dp = 4}, true, false, 0, -1, "data_parallel", "Gradients agree"},
    {"optimizer of one replica",
     UP_AFTER,
     1.5,
     {.tp = 4},
     true,
     false,
     0,
     -1,
     "optimizer",
     "Gradients agree"},
    {"the norm", METRIC, 1.5, {.tp = 4}, true, false, 0, -1, NULL, "more than once"},
};

/* Goal: each kind of error is reported with its cause. */
static void test_causes(void **state)
{
    const struct rk_verify_measure measure = {.tolerance = 1e-5};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cause_cases); i++) {
        const struct cause_case *c = &cause_cases[i];
        int32_t world =
            RK_MAX(c->mesh.tp, 1) * RK_MAX(c->mesh.cp, 1) * RK_MAX(c->mesh.dp, 1) * RK_MAX(c->mesh.pp, 1);
        struct rk_verify_rows rows = {0};
        struct rk_str advice = {0};
        struct rk_mesh *mesh;
        const char *cause;

        assert_ok(rk_mesh_create(&mesh, &c->mesh, world));
        fill_rows(&rows, c, world);
        rk_verify_judge(&rows, &measure);
        cause = rk_verify_find_cause(
            &advice, &rows, "actor",
            &(struct rk_verify_layout){mesh, c->sequence_parallel, c->is_tied, c->num_kv_heads}, &measure);
        if ((cause == NULL) != (c->cause == NULL) || (cause && strcmp(cause, c->cause) != 0) ||
            !strstr(rk_str_text(&advice), c->part))
            fail_msg("%s: cause %s, '%s'", c->label, cause ? cause : "none", rk_str_text(&advice));
        rk_str_fini(&advice);
        rk_verify_rows_fini(&rows);
        rk_mesh_destroy(mesh);
    }
}

/* --- references --- */

/* Goal: the reference layouts go from one rank up to the job's own, which is left out. */
static void test_references_grow_up_to_the_job(void **state)
{
    static const struct {
        const char *tp, *pp;
        int32_t world_size, count;
        struct rk_verify_reference expected[6];
    } cases[] = {
        {"1", "1", 1, 1, {{1, 1}}},
        {"1", "1", 4, 1, {{1, 1}}},
        {"4", "1", 4, 2, {{1, 1}, {2, 1}}},
        {"4", "1", 8, 3, {{1, 1}, {2, 1}, {4, 1}}},
        {"2", "4", 8, 3, {{1, 1}, {2, 1}, {2, 2}}},
        {"2", "4", 16, 4, {{1, 1}, {2, 1}, {2, 2}, {2, 4}}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *tp = rk_format(RK_JOB_ACTOR RK_JOB_TP "=%s", cases[i].tp);
        char *pp = rk_format(RK_JOB_ACTOR RK_JOB_PP "=%s", cases[i].pp);
        const char *const keys[] = {tp, pp};
        struct rk_verify_reference sizes[RK_VERIFY_REFERENCES_MAX];
        struct rk_config *job;
        int32_t count;

        assert_ok(rk_job_load(&job, RK_TEST_JOB, keys, 2));
        count = rk_verify_references(sizes, job, cases[i].world_size);
        assert_int_equal(count, cases[i].count);
        assert_memory_equal(sizes, cases[i].expected, (size_t)count * sizeof(sizes[0]));
        rk_config_destroy(job);
        rk_free(pp);
        rk_free(tp);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gathered_tensors_are_whole),
        cmocka_unit_test(test_gathered_refuses_damaged_parts),
        cmocka_unit_test(test_judge_scales_and_floors),
        cmocka_unit_test(test_judge_by_mean_square),
        cmocka_unit_test(test_compare_takes_off_what_the_step_makes_of_gradients),
        cmocka_unit_test(test_compare_orders_and_refuses),
        cmocka_unit_test(test_causes),
        cmocka_unit_test(test_references_grow_up_to_the_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
