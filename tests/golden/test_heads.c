/* Value and score heads against Hugging Face transformers in fp64 (gen/make_tiny_heads.py generates the
 * fixtures). */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "engine/rk_train.h"
#include "tests/support/device.h"
#include "tests/support/models.h"

#define MAX_TOKENS 64

struct head_case {
    const char *label, *fixture, *head;
    rk_dtype_t dtype;
    double tolerance;
};

static const struct head_case cases[] = {
    {"value f32", "golden/qwen2_value", "value", RK_DTYPE_F32, RK_TOL_F32_SUM},
    {"score f32", "golden/llama_score", "score", RK_DTYPE_F32, RK_TOL_F32_SUM},
    {"value f64", "golden/qwen2_value", "value", RK_DTYPE_F64, RK_TOL_F64_SUM},
    {"score f64", "golden/llama_score", "score", RK_DTYPE_F64, RK_TOL_F64_SUM},
};

/* The f64 cases are last: only the CPU supports f64. */
static size_t num_cases(void)
{
    return rk_test_device_dtype() == RK_DTYPE_F64 ? RK_ARRAY_LEN(cases) : RK_ARRAY_LEN(cases) - 2;
}

struct fixture {
    const struct head_case *row;
    char *dir;
    struct rk_st_file *file;
    struct rk_test_model test;
    struct rk_packed packed;
    int32_t tokens[MAX_TOKENS], positions[MAX_TOKENS], labels[MAX_TOKENS], cu_seqlens[MAX_TOKENS];
    double targets[MAX_TOKENS]; /* [packed tokens], at labelled tokens */
    int64_t num_labels;
    double loss;
};

static int64_t read(const struct fixture *f, const char *name, void *out, size_t bytes_max)
{
    const struct rk_st_tensor *tensor = rk_st_find(f->file, name);

    if (!tensor)
        fail_msg("%s: no tensor '%s'", f->row->fixture, name);
    assert_true(tensor->bytes <= bytes_max);
    assert_ok(rk_st_read(f->file, tensor, 0, tensor->bytes, out));
    return (int64_t)(tensor->bytes / rk_dtype_bytes(tensor->dtype));
}

/* Labels every token for values; the last one of each sequence for scores. */
static void mark(struct fixture *f)
{
    bool all = strcmp(f->row->head, "value") == 0;
    double targets[MAX_TOKENS];

    (void)read(f, "targets", targets, sizeof(targets));
    for (int32_t s = 0; s < f->packed.num_seqs; s++) {
        for (int32_t t = f->cu_seqlens[s]; t < f->cu_seqlens[s + 1]; t++) {
            f->positions[t] = t - f->cu_seqlens[s];
            f->labels[t] = all || t == f->cu_seqlens[s + 1] - 1 ? 0 : RK_LABEL_NONE;
            if (f->labels[t] != RK_LABEL_NONE)
                f->targets[t] = targets[f->num_labels++];
        }
        f->packed.max_seqlen = RK_MAX(f->packed.max_seqlen, f->cu_seqlens[s + 1] - f->cu_seqlens[s]);
    }
}

static void fixture_init(struct fixture *f, const struct head_case *row)
{
    char *path;

    *f = (struct fixture){.row = row, .dir = rk_test_fixture_path(row->fixture)};
    path = rk_path_join(f->dir, "golden.safetensors");
    assert_ok(rk_st_open(&f->file, path));
    rk_free(path);
    assert_ok(rk_test_model_open(
        &f->test, &(struct rk_test_model_spec){.dir = f->dir, .dtype = row->dtype, .head = row->head}));
    f->packed = (struct rk_packed){.num_tokens = read(f, "tokens", f->tokens, sizeof(f->tokens)),
                                   .tokens = f->tokens,
                                   .positions = f->positions,
                                   .cu_seqlens = f->cu_seqlens,
                                   .labels = f->labels};
    f->packed.num_seqs = (int32_t)read(f, "cu_seqlens", f->cu_seqlens, sizeof(f->cu_seqlens)) - 1;
    mark(f);
}

static void fixture_fini(struct fixture *f)
{
    rk_test_model_close(&f->test);
    rk_st_close(f->file);
    rk_free(f->dir);
}

static void check(const struct fixture *f, const char *name, const double *actual)
{
    double *expected = rk_malloc(1 << 20);
    char *label = rk_format("%s: %s", f->row->label, name);
    int64_t count = read(f, name, expected, 1 << 20);

    assert_below(label, rk_test_error_by_max(actual, expected, count), f->row->tolerance);
    rk_free(label);
    rk_free(expected);
}

/* mean (value - target)^2 / 2, as in the script. */
static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    struct fixture *f = user;

    f->loss = 0;
    for (int64_t t = 0; t < f->packed.num_tokens; t++) {
        double error = outputs->of[RK_HEAD_VALUES][t] - f->targets[t];

        if (f->labels[t] == RK_LABEL_NONE)
            continue;
        f->loss += error * error / 2 / (double)f->num_labels;
        grads->of[RK_HEAD_VALUES][t] = error / (double)f->num_labels;
    }
    return NULL;
}

/* Goal: values and scores of packed sequences. */
static void test_head_values_match_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < num_cases(); i++) {
        double values[MAX_TOKENS], marked[MAX_TOKENS];
        struct fixture f;
        int64_t count = 0;

        fixture_init(&f, &cases[i]);
        assert_ok(rk_model_forward(f.test.model, &f.packed, 1, NULL,
                                   &(struct rk_head_arrays){.of = {[RK_HEAD_VALUES] = values}}));
        for (int64_t t = 0; t < f.packed.num_tokens; t++) {
            if (f.labels[t] != RK_LABEL_NONE)
                marked[count++] = values[t];
            else
                assert_true(values[t] == 0.0);
        }
        check(&f, "values", marked);
        fixture_fini(&f);
    }
}

/* Goal: the backward pass through the head. Method: loss and every gradient. */
static void test_head_gradients_match_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < num_cases(); i++) {
        struct rk_optim_config optim = rk_test_adamw(1e-3, 0.1, 0);
        struct fixture f;
        struct rk_train_micro micro = {.packed = &f.packed,
                                       .temperature = 1,
                                       .outputs = RK_HEAD_BIT(RK_HEAD_VALUES),
                                       .loss_fn = loss_fn,
                                       .user = &f};

        fixture_init(&f, &cases[i]);
        assert_ok(rk_test_enable_training(f.test.model, &optim));
        assert_ok(rk_trainer_begin(rk_model_trainer(f.test.model)));
        assert_ok(rk_trainer_micro_batch(rk_model_trainer(f.test.model), &micro));
        check(&f, "loss", &f.loss);
        for (int64_t p = 0; p < rk_model_num_params(f.test.model); p++) {
            const struct rk_param *param = rk_model_param_at(f.test.model, p);
            double *grad = rk_calloc((size_t)(param->shape[0] * param->shape[1]), sizeof(double));
            char *name = rk_format("grad.%s", param->name);

            assert_ok(rk_trainer_gather_grad(rk_model_trainer(f.test.model), p, grad));
            if (rk_st_find(f.file, name)) /* sequence classification has no bias */
                check(&f, name, grad);
            rk_free(name);
            rk_free(grad);
        }
        fixture_fini(&f);
    }
}

/* Goal: requesting an output that a head does not compute is an error. */
static void test_head_refuses_other_outputs(void **state)
{
    double values[MAX_TOKENS];
    struct fixture f;

    (void)state;
    fixture_init(&f, &cases[0]);
    assert_fails(rk_model_forward(f.test.model, &f.packed, 1, NULL,
                                  &(struct rk_head_arrays){.of = {[RK_HEAD_LOG_PROBS] = values}}),
                 RK_FAILED_PRECONDITION, "log_probs");
    fixture_fini(&f);
}

static double *gather(struct rk_model *model, const char *name)
{
    int64_t i = rk_model_find_param(model, name);
    double *values;

    assert_true(i >= 0);
    values = rk_calloc((size_t)rk_param_num_elements(rk_model_param_at(model, i)), sizeof(double));
    assert_ok(rk_model_gather_param(model, i, values));
    return values;
}

/* Goal: a critic starts from a language model: its trunk, a value head from the seed, and a bias of 0. A
 * reward model does not accept one. */
static void test_value_head_is_new_on_a_language_model(void **state)
{
    char *dir = rk_test_fixture_path("golden/qwen2_tiny");
    struct rk_test_model_spec spec = {.dir = dir, .dtype = RK_DTYPE_F32, .head = "value", .seed = 5};
    struct rk_test_model lm, critic;
    double *trunk[2], *head[2], *bias;

    (void)state;
    assert_ok(rk_test_model_open(&critic, &spec));
    head[0] = gather(critic.model, "score.weight");
    trunk[0] = gather(critic.model, "model.norm.weight");
    bias = gather(critic.model, "score.bias");
    assert_true(bias[0] == 0.0);
    rk_test_model_close(&critic);
    spec.seed = 6;
    assert_ok(rk_test_model_open(&critic, &spec));
    head[1] = gather(critic.model, "score.weight");
    assert_memory_not_equal(head[0], head[1], 32 * sizeof(double));
    rk_test_model_close(&critic);
    spec.head = NULL;
    assert_ok(rk_test_model_open(&lm, &spec));
    trunk[1] = gather(lm.model, "model.norm.weight");
    assert_memory_equal(trunk[0], trunk[1], 32 * sizeof(double));
    rk_test_model_close(&lm);
    spec.head = "score";
    assert_fails(rk_test_model_open(&critic, &spec), RK_UNIMPLEMENTED, "Qwen2ForCausalLM");
    rk_test_model_close(&critic);
    for (int i = 0; i < 2; i++) {
        rk_free(head[i]);
        rk_free(trunk[i]);
    }
    rk_free(bias);
    rk_free(dir);
}

/* Goal: a critic exports a directory of token classification that it loads again, bit for bit. */
static void test_exported_critic_is_token_classification(void **state)
{
    char *source = rk_test_fixture_path("golden/qwen2_tiny"), *dir = rk_test_temp_path("critic");
    char *path = rk_path_join(dir, "config.json");
    struct rk_test_model critic, again;
    struct rk_json *config;
    double *before, *after;

    (void)state;
    assert_ok(rk_test_model_open(
        &critic, &(struct rk_test_model_spec){.dir = source, .dtype = RK_DTYPE_F32, .head = "value"}));
    assert_ok(rk_model_export_hf(critic.model, dir, 0, NULL));
    assert_ok(rk_json_parse_file(&config, path, 1 << 20, 0));
    assert_string_equal(rk_json_as_string(rk_json_at(rk_json_find(config, "architectures"), 0), ""),
                        "Qwen2ForTokenClassification");
    assert_int_equal(rk_json_count(rk_json_find(config, "id2label")), 1);
    rk_json_free(config);
    assert_ok(rk_test_model_open(
        &again, &(struct rk_test_model_spec){.dir = dir, .dtype = RK_DTYPE_F32, .head = "value", .seed = 9}));
    before = gather(critic.model, "score.weight");
    after = gather(again.model, "score.weight");
    assert_memory_equal(before, after, 32 * sizeof(double));
    rk_test_model_close(&critic);
    rk_test_model_close(&again);
    rk_free(before);
    rk_free(after);
    rk_free(path);
    rk_free(dir);
    rk_free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_values_match_transformers),
        cmocka_unit_test(test_head_gradients_match_transformers),
        cmocka_unit_test(test_head_refuses_other_outputs),
        cmocka_unit_test(test_value_head_is_new_on_a_language_model),
        cmocka_unit_test(test_exported_critic_is_token_classification),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
