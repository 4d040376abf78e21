/* Training checkpoints of one rank: round trips, refused checkpoints, and the files after a failed save.
 * Layouts: test_checkpoint_ranks.c. */
#include "tests/support/test.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "engine/ckpt/saver_internal.h"
#include "tests/support/models.h"

#define CONFIG_OF(theta)                                                                                    \
    "{\"model_type\": \"qwen2\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 1," \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 67, "                         \
    "\"max_position_embeddings\": 64, \"initializer_range\": 0.15, \"rope_theta\": " theta "}"
#define CONFIG     CONFIG_OF("10000.0")
#define NUM_TOKENS 16
#define ALL        (RK_CHECKPOINT_MODEL | RK_CHECKPOINT_OPTIMIZER | RK_CHECKPOINT_EXTRA)
#define SHARD      "dist_ckpt/shard_00000.safetensors"

static const int32_t cu_seqlens[] = {0, NUM_TOKENS};
static const char *const only_actor[] = {"actor", NULL};

static void train(struct rk_model *model, int num_steps)
{
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS];
    struct rk_packed packed = {1, NUM_TOKENS, NUM_TOKENS, tokens, positions, cu_seqlens, labels, NULL};
    struct rk_step_stats stats;
    double loss;

    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        tokens[t] = (5 * t + 3) % 67;
        positions[t] = t;
        labels[t] = (11 * t + 1) % 67;
    }
    for (int step = 0; step < num_steps; step++) {
        assert_ok(rk_test_mean_pass(&loss, model, &packed));
        assert_ok(rk_trainer_step(rk_model_trainer(model), &stats));
        assert_false(stats.was_skipped);
        rk_trainer_advance_lr(rk_model_trainer(model));
    }
}

static void open_plain(struct rk_test_model *test, const char *config, uint64_t seed, rk_dtype_t dtype)
{
    assert_ok(rk_test_model_open(
        test, &(struct rk_test_model_spec){.config = config, .seed = seed, .dtype = dtype}));
}

static void open_training(struct rk_test_model *test, uint64_t seed, rk_dtype_t dtype)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 1);

    open_plain(test, CONFIG, seed, dtype);
    assert_ok(rk_test_enable_training(test->model, &optim));
}

static char *part_of(const char *dir, int64_t step)
{
    char *step_dir = rk_ckpt_step_dir(dir, step), *part = rk_path_join(step_dir, "actor");

    rk_free(step_dir);
    return part;
}

static struct rk_status *save_as(struct rk_saver *saver, const char *dir, int64_t step, uint32_t contents,
                                 bool is_async)
{
    char *part = part_of(dir, step);
    struct rk_checkpoint_save save = {
        .part_dir = part, .role = "actor", .global_step = step, .contents = contents, .is_async = is_async};
    struct rk_checkpoint_report report;
    struct rk_status *st = rk_saver_save(saver, &save, NULL, &report);

    if (!st) {
        assert_int_equal(report.state, is_async ? RK_CHECKPOINT_WRITING : RK_CHECKPOINT_DONE);
        assert_int_equal(report.global_step, step);
        assert_string_equal(report.part_dir, part);
        assert_true(is_async || report.bytes >= rk_model_checkpoint_bytes(saver->model, contents));
    }
    rk_free(part);
    return st;
}

/* A synchronous save of `contents`. */
static struct rk_status *save_now(struct rk_model *model, const char *dir, int64_t step, uint32_t contents)
{
    struct rk_saver *saver = rk_saver_create(model);
    struct rk_status *st = save_as(saver, dir, step, contents, false);

    rk_saver_destroy(saver);
    return st;
}

static struct rk_status *save(struct rk_model *model, const char *dir, int64_t step)
{
    return save_now(model, dir, step, ALL);
}

static struct rk_status *load_as(struct rk_model *model, const char *dir, int64_t step, uint32_t contents,
                                 struct rk_checkpoint_loaded *loaded)
{
    char *part = part_of(dir, step);
    struct rk_status *st = rk_model_load_checkpoint(model, part, contents, NULL, loaded);

    rk_free(part);
    return st;
}

static struct rk_status *load(struct rk_model *model, const char *dir, int64_t step)
{
    struct rk_checkpoint_loaded loaded;
    struct rk_status *st = load_as(model, dir, step, 0, &loaded);

    assert_false(loaded.is_mixed);
    return st;
}

/* All bytes that a checkpoint must restore. */
struct image {
    size_t value_bytes, shard_bytes;
    void *values, *masters, *states[2];
    int64_t applied_steps, lr_steps;
    uint64_t weight_version;
};

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = data ? rk_malloc(bytes) : NULL;

    if (data)
        memcpy(copy, data, bytes);
    return copy;
}

static void image_take(struct image *image, const struct rk_model *model)
{
    const struct rk_trainer *trainer = model->trainer;

    *image = (struct image){.weight_version = model->core->weight_version,
                            .applied_steps = trainer->applied_steps,
                            .lr_steps = trainer->lr_steps};
    image->value_bytes = (size_t)model->core->params.num_elements * rk_dtype_bytes(model->core->dtype);
    image->shard_bytes = (size_t)trainer->shard_count * rk_dtype_bytes(trainer->grad_dtype);
    image->values = copy_of(model->core->values, image->value_bytes);
    image->masters = copy_of(model->core->masters.values, image->shard_bytes);
    for (int s = 0; s < 2; s++)
        image->states[s] = copy_of(trainer->states[s], image->shard_bytes);
}

static void image_fini(struct image *image)
{
    rk_free(image->values);
    rk_free(image->masters);
    rk_free(image->states[0]);
    rk_free(image->states[1]);
}

static bool is_same(const struct image *image, const struct rk_model *model)
{
    const struct rk_trainer *trainer = model->trainer;
    bool same = memcmp(image->values, model->core->values, image->value_bytes) == 0 &&
                image->weight_version == model->core->weight_version &&
                image->applied_steps == trainer->applied_steps && image->lr_steps == trainer->lr_steps;

    if (image->masters)
        same = same && memcmp(image->masters, model->core->masters.values, image->shard_bytes) == 0;
    for (int s = 0; s < 2; s++)
        same = same && memcmp(image->states[s], trainer->states[s], image->shard_bytes) == 0;
    return same;
}

/* --- round trips --- */

/* Goal: the state is restored bit for bit, and training continues as without the interruption. */
static void test_state_comes_back_bitwise(void **state)
{
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_BF16, RK_DTYPE_F64};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(dtypes); i++) {
        struct rk_test_model first, second;
        struct rk_checkpoint_loaded loaded;
        struct image image;
        char *dir = rk_test_new_dir();

        open_training(&first, 3, dtypes[i]);
        open_training(&second, 4, dtypes[i]);
        train(first.model, 3);
        train(second.model, 1);
        image_take(&image, first.model);
        assert_ok(save(first.model, dir, 7));
        assert_true(is_same(&image, first.model));
        assert_ok(load_as(second.model, dir, 7, 0, &loaded));
        assert_int_equal(loaded.global_step, 7);
        assert_int_equal(loaded.weight_version, 3);
        assert_int_equal(loaded.contents, ALL);
        assert_true(is_same(&image, second.model));
        image_fini(&image);
        train(first.model, 2);
        train(second.model, 2);
        image_take(&image, first.model);
        assert_true(is_same(&image, second.model));
        image_fini(&image);
        rk_test_model_close(&first);
        rk_test_model_close(&second);
        rk_free(dir);
    }
}

/* Goal: loading weights only restores the masters bit for bit and initializes the optimizer. */
static void test_model_alone_gives_masters_and_zero_moments(void **state)
{
    struct rk_test_model first, second;
    struct rk_checkpoint_loaded loaded;
    struct image image;
    char *dir = rk_test_new_dir();

    (void)state;
    open_training(&first, 3, RK_DTYPE_BF16);
    open_training(&second, 4, RK_DTYPE_BF16);
    train(first.model, 3);
    train(second.model, 2);
    image_take(&image, first.model);
    assert_ok(save_now(first.model, dir, 1, RK_CHECKPOINT_MODEL));
    assert_message_contains(load_as(second.model, dir, 1, ALL, &loaded), "'optimizer' is not in");
    assert_ok(load_as(second.model, dir, 1, 0, &loaded));
    assert_int_equal(loaded.contents, RK_CHECKPOINT_MODEL);
    memset(image.states[0], 0, image.shard_bytes);
    memset(image.states[1], 0, image.shard_bytes);
    image.applied_steps = image.lr_steps = 0;
    assert_true(is_same(&image, second.model));
    image_fini(&image);
    rk_test_model_close(&first);
    rk_test_model_close(&second);
    rk_free(dir);
}

/* Goal: an inference model loads the checkpoint of a training model, with rounding, and vice versa. */
static void test_models_that_train_and_others_read_each_other(void **state)
{
    struct rk_test_model trains, other;
    struct rk_checkpoint_loaded loaded;
    char *dir = rk_test_new_dir();
    size_t bytes;

    (void)state;
    open_training(&trains, 3, RK_DTYPE_BF16);
    open_plain(&other, CONFIG, 4, RK_DTYPE_BF16);
    train(trains.model, 2);
    bytes = (size_t)trains.model->core->params.num_elements * sizeof(uint16_t);
    assert_ok(save(trains.model, dir, 1));
    assert_ok(load_as(other.model, dir, 1, 0, &loaded));
    assert_int_equal(loaded.contents, RK_CHECKPOINT_MODEL | RK_CHECKPOINT_EXTRA);
    assert_memory_equal(other.model->core->values, trains.model->core->values, bytes);
    assert_code(load_as(other.model, dir, 1, ALL, &loaded), RK_FAILED_PRECONDITION);
    assert_code(save(other.model, dir, 2), RK_FAILED_PRECONDITION);
    assert_ok(save_now(other.model, dir, 2, RK_CHECKPOINT_MODEL));
    train(trains.model, 1);
    assert_ok(load(trains.model, dir, 2));
    assert_memory_equal(trains.model->core->values, other.model->core->values, bytes);
    for (int64_t i = 0; i < trains.model->trainer->shard_count; i++)
        assert_int_equal(rk_f32_to_bf16(((float *)trains.model->core->masters.values)[i]),
                         ((uint16_t *)other.model->core->values)[i]);
    rk_test_model_close(&trains);
    rk_test_model_close(&other);
    rk_free(dir);
}

static void test_hf_model_is_exported_next_to_the_state(void **state)
{
    struct rk_test_model first, second;
    char *dir = rk_test_new_dir(), *part = part_of(dir, 1), *hf = rk_path_join(part, "huggingface");
    struct rk_checkpoint_loaded loaded;

    (void)state;
    open_training(&first, 3, RK_DTYPE_F32);
    open_plain(&second, CONFIG, 4, RK_DTYPE_F32);
    train(first.model, 1);
    assert_ok(save_now(first.model, dir, 1, ALL | RK_CHECKPOINT_HF_MODEL));
    assert_ok(rk_model_load_hf(second.model, hf, NULL));
    assert_memory_equal(second.model->core->values, first.model->core->values,
                        (size_t)first.model->core->params.num_elements * sizeof(float));
    assert_ok(load_as(first.model, dir, 1, ALL | RK_CHECKPOINT_HF_MODEL, &loaded));
    assert_int_equal(loaded.contents, ALL);
    rk_test_model_close(&first);
    rk_test_model_close(&second);
    rk_free(hf);
    rk_free(part);
    rk_free(dir);
}

/* The tensor of the gradient of parameter `i` in the shard, as f64; rk_free it. */
static double *read_gradient(const struct rk_st_file *file, const struct rk_param *param)
{
    char *name = rk_format("gradient.%s", param->name);
    const struct rk_st_tensor *tensor = rk_st_find(file, name);
    int64_t count = rk_param_num_elements(param);
    double *values = rk_calloc((size_t)count, sizeof(*values));
    void *raw = rk_calloc((size_t)count, sizeof(double));

    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, RK_DTYPE_F32);
    assert_int_equal(tensor->bytes, (uint64_t)count * sizeof(float));
    assert_ok(rk_st_read(file, tensor, 0, (size_t)count * sizeof(float), raw));
    rk_load_f64(values, raw, RK_DTYPE_F32, count);
    rk_free(raw);
    rk_free(name);
    return values;
}

/* Goal: the saved gradients are those of the last step, and the state loads as without them. */
static void test_gradients_of_the_last_step_are_written(void **state)
{
    struct rk_test_model first, second;
    char *dir = rk_test_new_dir(), *part = part_of(dir, 1), *shard = rk_path_join(part, SHARD);
    struct rk_checkpoint_loaded loaded;
    struct rk_st_file *file;
    struct image image;

    (void)state;
    open_training(&first, 3, RK_DTYPE_BF16);
    open_training(&second, 4, RK_DTYPE_BF16);
    train(first.model, 2);
    image_take(&image, first.model);
    assert_ok(save_now(first.model, dir, 1, ALL | RK_CHECKPOINT_GRADIENTS));
    assert_ok(rk_st_open(&file, shard));
    for (int64_t i = 0; i < rk_model_num_params(first.model); i++) {
        const struct rk_param *param = rk_model_param_at(first.model, i);
        double *gathered = rk_calloc((size_t)rk_param_num_elements(param), sizeof(*gathered));
        double *stored = read_gradient(file, param);

        assert_ok(rk_trainer_gather_grad(rk_model_trainer(first.model), i, gathered));
        assert_memory_equal(stored, gathered, (size_t)rk_param_num_elements(param) * sizeof(double));
        rk_free(stored);
        rk_free(gathered);
    }
    rk_st_close(file);
    assert_ok(load_as(second.model, dir, 1, 0, &loaded));
    assert_int_equal(loaded.contents, ALL);
    assert_true(is_same(&image, second.model));
    image_fini(&image);
    rk_test_model_close(&first);
    rk_test_model_close(&second);
    rk_free(shard);
    rk_free(part);
    rk_free(dir);
}

/* Goal: gradients are saved only if they belong to a complete step. */
static void test_gradients_without_a_step_are_refused(void **state)
{
    struct rk_test_model trains, other;

    (void)state;
    open_training(&trains, 3, RK_DTYPE_F32);
    open_plain(&other, CONFIG, 4, RK_DTYPE_F32);
    assert_code(rk_model_check_contents(other.model, RK_CHECKPOINT_GRADIENTS), RK_FAILED_PRECONDITION);
    assert_code(rk_model_check_contents(trains.model, RK_CHECKPOINT_GRADIENTS), RK_FAILED_PRECONDITION);
    train(trains.model, 1);
    assert_ok(rk_model_check_contents(trains.model, RK_CHECKPOINT_GRADIENTS));
    assert_ok(rk_trainer_begin(rk_model_trainer(trains.model)));
    assert_message_contains(rk_model_check_contents(trains.model, RK_CHECKPOINT_GRADIENTS),
                            "contents: gradients: ");
    rk_test_model_close(&trains);
    rk_test_model_close(&other);
}

/* --- asynchronous saves --- */

/* Goal: training continues while the file is written, and the file has the state at the time of the call. */
static void test_async_save_has_the_state_of_the_call(void **state)
{
    struct rk_saver *saver;
    struct rk_test_model first, second;
    struct rk_checkpoint_report report;
    struct image image;
    char *dir = rk_test_new_dir();

    (void)state;
    open_training(&first, 3, RK_DTYPE_BF16);
    saver = rk_saver_create(first.model);
    open_training(&second, 4, RK_DTYPE_BF16);
    train(first.model, 2);
    image_take(&image, first.model);
    setenv("RANKD_FAULTS", "file.sync=sleep:300ms", 1);
    assert_ok(save_as(saver, dir, 5, ALL, true));
    assert_ok(rk_saver_wait(saver, false, NULL, &report));
    assert_int_equal(report.state, RK_CHECKPOINT_WRITING);
    train(first.model, 2);
    assert_false(is_same(&image, first.model));
    assert_code(load(second.model, dir, 5), RK_NOT_FOUND);
    assert_ok(rk_saver_wait(saver, true, NULL, &report));
    unsetenv("RANKD_FAULTS");
    assert_int_equal(report.state, RK_CHECKPOINT_DONE);
    assert_true(report.copy_seconds < 0.2 && report.seconds >= 0.3);
    assert_ok(rk_saver_wait(saver, true, NULL, &report));
    assert_int_equal(report.state, RK_CHECKPOINT_NONE);
    assert_ok(load(second.model, dir, 5));
    assert_true(is_same(&image, second.model));
    image_fini(&image);
    rk_saver_destroy(saver);
    rk_test_model_close(&first);
    rk_test_model_close(&second);
    rk_free(dir);
}

/* Goal: a second save completes the first one; a destroyed model drops its save and leaves no directory. */
static void test_second_save_finishes_the_first(void **state)
{
    struct rk_checkpoint_report report;
    struct rk_saver *saver;
    struct rk_test_model test;
    char *dir = rk_test_new_dir();

    (void)state;
    open_training(&test, 3, RK_DTYPE_F32);
    saver = rk_saver_create(test.model);
    assert_ok(save_as(saver, dir, 1, ALL, true));
    assert_ok(save_as(saver, dir, 2, ALL, true));
    assert_ok(rk_ckpt_check_step(dir, 1, only_actor, RK_CKPT_CHECK_CHECKSUMS));
    assert_ok(rk_saver_wait(saver, true, NULL, &report));
    setenv("RANKD_FAULTS", "file.write=sleep:100ms", 1);
    assert_ok(save_as(saver, dir, 3, ALL, true));
    rk_saver_destroy(saver);
    rk_test_model_close(&test);
    unsetenv("RANKD_FAULTS");
    assert_ok(rk_ckpt_check_step(dir, 2, only_actor, RK_CKPT_CHECK_CHECKSUMS));
    assert_code(rk_ckpt_check_step(dir, 3, only_actor, RK_CKPT_CHECK_SIZES), RK_NOT_FOUND);
    rk_free(dir);
}

/* Goal: without host memory for the copy the save reads from the device and writes the same file. */
static void test_save_without_host_memory_is_the_same(void **state)
{
    struct rk_saver *saver;
    struct rk_test_model test;
    char *dir = rk_test_new_dir(), *paths[2], *texts[2];
    size_t bytes[2];

    (void)state;
    open_training(&test, 3, RK_DTYPE_BF16);
    saver = rk_saver_create(test.model);
    train(test.model, 1);
    assert_int_equal(rk_model_get_memory(test.model).checkpoint_host_bytes, 0);
    for (int i = 0; i < 2; i++) {
        char *part = part_of(dir, i);
        struct rk_checkpoint_report report;
        struct rk_checkpoint_save all = {
            .part_dir = part, .role = "actor", .contents = ALL, .is_async = true};

        setenv("RANKD_FAULTS", i == 0 ? "ckpt.snapshot=fail" : "", 1);
        assert_ok(rk_saver_save(saver, &all, NULL, &report));
        assert_int_equal(report.state, RK_CHECKPOINT_WRITING);
        assert_ok(rk_saver_wait(saver, i == 1, NULL, &report));
        assert_int_equal(report.state, RK_CHECKPOINT_DONE);
        paths[i] = rk_path_join(part, SHARD);
        texts[i] = rk_test_read_file(paths[i], &bytes[i]);
        rk_free(part);
    }
    unsetenv("RANKD_FAULTS");
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(texts[0], texts[1], bytes[0]);
    assert_true(rk_model_get_memory(test.model).checkpoint_host_bytes >= 12000);
    for (int i = 0; i < 2; i++) {
        rk_free(paths[i]);
        rk_free(texts[i]);
    }
    rk_saver_destroy(saver);
    rk_test_model_close(&test);
    rk_free(dir);
}

static bool always(void *user)
{
    (void)user;
    return true;
}

static void test_cancelled_save_and_load_leave_all_as_it_was(void **state)
{
    struct rk_engine_hooks hooks = {.is_cancelled = always};
    struct rk_checkpoint_loaded loaded;
    struct rk_checkpoint_report report;
    struct rk_saver *saver;
    struct rk_test_model test;
    struct image image;
    char *dir = rk_test_new_dir(), *part = part_of(dir, 1), *step_dir = rk_ckpt_step_dir(dir, 1);
    struct rk_checkpoint_save all = {.part_dir = part, .role = "actor", .contents = ALL};

    (void)state;
    open_training(&test, 3, RK_DTYPE_F32);
    saver = rk_saver_create(test.model);
    setenv("RANKD_FAULTS", "file.write=sleep:50ms", 1);
    assert_code(rk_saver_save(saver, &all, &hooks, &report), RK_CANCELLED);
    unsetenv("RANKD_FAULTS");
    assert_int_equal(rk_test_count_entries(step_dir), 0);
    assert_ok(save(test.model, dir, 1));
    train(test.model, 1);
    image_take(&image, test.model);
    assert_code(rk_model_load_checkpoint(test.model, part, 0, &hooks, &loaded), RK_CANCELLED);
    assert_false(loaded.is_mixed);
    assert_true(is_same(&image, test.model));
    image_fini(&image);
    rk_saver_destroy(saver);
    rk_test_model_close(&test);
    rk_free(step_dir);
    rk_free(part);
    rk_free(dir);
}

/* --- failures --- */

static int num_entries(const char *path)
{
    DIR *stream = opendir(path);
    int count = 0;

    for (; stream && readdir(stream); count++)
        ;
    if (stream)
        closedir(stream);
    return count;
}

/* Goal: a save that fails at any operation leaves the previous checkpoint as the latest and no other files;
 * the model remains usable, and the next save succeeds. */
static void test_failed_save_leaves_nothing(void **state)
{
    static const char *const points[] = {"file.write", "file.sync",     "file.rename", "file.sync_dir",
                                         "ckpt.save",  "ckpt.manifest", "ckpt.rename"};
    char *dir = rk_test_new_dir(), *step_dir = rk_ckpt_step_dir(dir, 2);
    struct rk_saver *saver;
    struct rk_test_model test;
    int num_failures = 0;

    (void)state;
    open_training(&test, 3, RK_DTYPE_BF16);
    saver = rk_saver_create(test.model);
    assert_ok(save(test.model, dir, 1));
    for (size_t i = 0; i < RK_ARRAY_LEN(points); i++) {
        struct rk_status *st = NULL;

        for (int hit = 1; hit == 1 || st; hit++) {
            char *faults = rk_format("%s=fail@%d", points[i], hit);
            bool is_last_sync;
            int64_t found;

            rk_status_free(st);
            setenv("RANKD_FAULTS", faults, 1);
            st = save_as(saver, dir, 2, ALL, hit % 2);
            if (!st && hit % 2) {
                struct rk_checkpoint_report report;

                st = rk_saver_wait(saver, true, NULL, &report);
            }
            unsetenv("RANKD_FAULTS");
            assert_ok(rk_ckpt_find_latest(&found, dir, only_actor, RK_CKPT_CHECK_CHECKSUMS));
            /* The name may exist after a failure only if the rename succeeded and the final sync failed. */
            is_last_sync = st && strcmp(points[i], "file.sync_dir") == 0 && found == 2;
            assert_true(found == (st && !is_last_sync ? 1 : 2));
            assert_int_equal(num_entries(step_dir), found == 2 ? 3 : 2);
            num_failures += st != NULL;
            assert_ok(rk_ckpt_remove(step_dir));
            rk_free(faults);
        }
        rk_status_free(st);
    }
    assert_true(num_failures >= 15);
    train(test.model, 1);
    assert_ok(save(test.model, dir, 3));
    rk_saver_destroy(saver);
    rk_test_model_close(&test);
    rk_free(step_dir);
    rk_free(dir);
}

/* Loads the invalid checkpoint into a model, which must not change. */
static void assert_refused(struct rk_model *model, const struct image *image, const char *dir,
                           const char *label)
{
    struct rk_checkpoint_loaded loaded;
    struct rk_status *st = load_as(model, dir, 1, 0, &loaded);

    if (rk_status_code(st) != RK_DATA_LOSS && rk_status_code(st) != RK_NOT_FOUND &&
        rk_status_code(st) != RK_UNIMPLEMENTED)
        fail_msg("%s: %s", label, rk_status_message(st));
    assert_false(loaded.is_mixed);
    assert_true(is_same(image, model));
    rk_status_free(st);
}

/* Goal: a checkpoint truncated at any multiple of 4 KiB, with a flipped byte, or with a missing file is
 * refused, and no part of it is loaded.
 */
static void test_damaged_checkpoint_is_refused(void **state)
{
    static const char *const files[] = {SHARD, "huggingface/config.json", RK_CKPT_MANIFEST_FILE};
    struct rk_test_model test;
    struct image image;
    char *dir = rk_test_new_dir(), *part = part_of(dir, 1);

    (void)state;
    open_training(&test, 3, RK_DTYPE_F32);
    assert_ok(save(test.model, dir, 1));
    train(test.model, 1);
    image_take(&image, test.model);
    for (size_t i = 0; i < RK_ARRAY_LEN(files); i++) {
        char *path = rk_path_join(part, files[i]);
        size_t bytes;
        char *data = rk_test_read_file(path, &bytes);

        for (size_t cut = 0; cut + 1 < bytes; cut += 4096) {
            rk_test_write_file(path, data, cut);
            assert_refused(test.model, &image, dir, files[i]);
        }
        for (size_t at = 0; at < bytes; at += bytes / 29 + 1) {
            data[at] ^= 0x10;
            rk_test_write_file(path, data, bytes);
            assert_refused(test.model, &image, dir, files[i]);
            data[at] ^= 0x10;
        }
        assert_int_equal(unlink(path), 0);
        assert_refused(test.model, &image, dir, files[i]);
        rk_test_write_file(path, data, bytes);
        rk_free(data);
        rk_free(path);
    }
    assert_ok(load(test.model, dir, 1));
    image_fini(&image);
    rk_test_model_close(&test);
    rk_free(part);
    rk_free(dir);
}

/* Rewrites the shard of a checkpoint with other descriptions, and a matching manifest. */
static void rewrite_shard(const char *part, const char *from, const char *to)
{
    char *path = rk_path_join(part, SHARD), *text, *at, *edited;
    struct rk_json *metadata = rk_json_new_object();
    struct rk_ckpt_manifest manifest;
    struct rk_st_entry entries[64];
    struct rk_st_writer *writer;
    struct rk_st_file *file;
    char *data;

    assert_ok(rk_st_open(&file, path));
    assert_true(rk_st_count(file) <= 64);
    text =
        rk_strdup(rk_json_as_string(rk_json_find(rk_st_metadata(file), RK_CKPT_PIECES_KEY), "no metadata"));
    at = strstr(text, from);
    if (!at)
        fail_msg("no %s in %s", from, text);
    edited = rk_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    rk_json_set(metadata, RK_CKPT_PIECES_KEY, rk_json_new_string(edited));
    for (int64_t i = 0; i < rk_st_count(file); i++) {
        const struct rk_st_tensor *tensor = rk_st_at(file, i);

        entries[i] = (struct rk_st_entry){.name = tensor->name, .dtype = tensor->dtype, .rank = tensor->rank};
        memcpy(entries[i].shape, tensor->shape, sizeof(tensor->shape));
    }
    assert_ok(rk_st_writer_create(&writer, path, entries, rk_st_count(file), metadata));
    for (int64_t i = 0; i < rk_st_count(file); i++) {
        const struct rk_st_tensor *tensor = rk_st_at(file, i);

        data = rk_malloc(tensor->bytes);
        assert_ok(rk_st_read(file, tensor, 0, tensor->bytes, data));
        assert_ok(rk_st_writer_write(writer, i, 0, data, tensor->bytes));
        rk_free(data);
    }
    assert_ok(rk_st_writer_commit(writer));
    rk_st_writer_destroy(writer);
    rk_st_close(file);
    assert_ok(rk_ckpt_manifest_read(&manifest, part));
    for (int64_t i = 0; i < manifest.files.count; i++)
        rk_free(manifest.files.items[i].name);
    manifest.files.count = 0;
    assert_ok(rk_ckpt_manifest_add_file(&manifest, part, SHARD));
    assert_ok(rk_ckpt_manifest_write(&manifest, part));
    rk_ckpt_manifest_fini(&manifest);
    rk_json_free(metadata);
    rk_free(text);
    rk_free(edited);
    rk_free(path);
}

/* Goal: descriptions that do not cover the tensors are refused by name, even with valid checksums. */
static void test_wrong_descriptions_are_refused(void **state)
{
    static const struct {
        const char *from, *to;
        rk_code_t code;
        const char *text;
    } cases[] = {
        {"\"model.norm.weight\":{\"global_shape\":[32],\"box\":[[0,32]],\"runs\":[[0,32]]",
         "\"model.norm.weight\":{\"global_shape\":[32],\"box\":[[0,32]],\"runs\":[[0,31]]", RK_DATA_LOSS,
         "model.norm.weight"},
        {"\"model.norm.weight\":{\"global_shape\":[32],\"box\":[[0,32]],\"runs\":[[0,32]]",
         "\"model.norm.weight\":{\"global_shape\":[32],\"box\":[[0,33]],\"runs\":[[0,33]]", RK_DATA_LOSS,
         "box is not inside"},
        {"\"model.norm.weight\":{\"global_shape\":[32],\"box\":[[0,32]],\"runs\":[[0,32]]",
         "\"model.norm.weight\":{\"global_shape\":[32],\"box\":[[0,32]],\"runs\":[[0,16],[8,24]]",
         RK_DATA_LOSS, "runs do not ascend"},
        {"\"model.norm.weight\":{\"global_shape\":[32],\"box\":[[0,32]],\"runs\":[[0,32]]",
         "\"model.norm.weight\":{\"global_shape\":[32],\"box\":[[0,32]],\"runs\":[]", RK_DATA_LOSS,
         "array of pairs"},
        {"\"model.norm.weight\":{\"global_shape\":[32],\"box\":[[0,32]],\"runs\":[[0,32]]",
         "\"model.norm.weight\":{\"global_shape\":[32],\"box\":[[0,32]],\"runs\":[[0,9223372036854775807]]",
         RK_DATA_LOSS, "runs do not ascend"},
        {"\"model.norm.weight\":{\"global_shape\":[32]", "\"model.norm.weight\":{\"global_shape\":[33]",
         RK_INVALID_ARGUMENT, "expected 32"},
        {"\"model.norm.weight\":{\"global_shape\":[32]", "\"model.norm.weight\":{\"global_shape\":[32,1]",
         RK_DATA_LOSS, "rank"},
        {"\"model.norm.weight\":", "\"other\":", RK_DATA_LOSS, "model.norm.weight"},
        {"{", "[", RK_DATA_LOSS, RK_CKPT_PIECES_KEY},
    };
    struct rk_test_model test;

    (void)state;
    open_training(&test, 3, RK_DTYPE_F32);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *dir = rk_test_new_dir(), *part = part_of(dir, 1);
        struct rk_status *st;

        assert_ok(save(test.model, dir, 1));
        rewrite_shard(part, cases[i].from, cases[i].to);
        st = load(test.model, dir, 1);
        if (rk_status_code(st) != cases[i].code || !strstr(rk_status_message(st), cases[i].text))
            fail_msg("%zu: %s: %s", i, rk_code_name(rk_status_code(st)), rk_status_message(st));
        rk_status_free(st);
        rk_free(part);
        rk_free(dir);
    }
    rk_test_model_close(&test);
}

/* Goal: a checkpoint of another model, or of another optimizer's dtype, is refused with the difference. */
static void test_other_models_are_refused(void **state)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 1);
    struct rk_test_model test, other, wide;
    struct rk_checkpoint_loaded loaded;
    char *dir = rk_test_new_dir();

    (void)state;
    open_training(&test, 3, RK_DTYPE_F32);
    assert_ok(save(test.model, dir, 1));
    open_plain(&other, CONFIG_OF("20000.0"), 4, RK_DTYPE_F32);
    assert_fails(load(other.model, dir, 1), RK_INVALID_ARGUMENT,
                 "rope_theta is 10000.0 in the checkpoint and 20000.0 in the model");
    open_plain(&wide, CONFIG, 4, RK_DTYPE_F64);
    assert_ok(rk_test_enable_training(wide.model, &optim));
    assert_fails(load(wide.model, dir, 1), RK_INVALID_ARGUMENT, "float32");
    assert_ok(load_as(wide.model, dir, 1, RK_CHECKPOINT_MODEL, &loaded)); /* weights are converted */
    for (int64_t i = 0; i < wide.model->core->params.num_elements; i++)
        assert_true(((double *)wide.model->core->values)[i] ==
                    (double)((float *)test.model->core->values)[i]);
    rk_test_model_close(&test);
    rk_test_model_close(&other);
    rk_test_model_close(&wide);
    rk_free(dir);
}

/* Goal: an error while parameters are being overwritten has its own code. */
static void test_load_that_fails_halfway_is_reported_as_mixed(void **state)
{
    struct rk_checkpoint_loaded loaded;
    struct rk_test_model test;
    char *dir = rk_test_new_dir();

    (void)state;
    open_training(&test, 3, RK_DTYPE_F32);
    assert_ok(save(test.model, dir, 1));
    setenv("RANKD_FAULTS", "ckpt.load=fail@9", 1);
    assert_code(load_as(test.model, dir, 1, 0, &loaded), RK_INTERNAL);
    unsetenv("RANKD_FAULTS");
    assert_true(loaded.is_mixed);
    rk_test_model_close(&test);
    rk_free(dir);
}

/* Goal: NaN and infinite numbers in a checkpoint are refused as in a model, by the tensor's name; those of
 * the optimizer's states too, of which the next step would make weights. */
static void test_non_finite_numbers_are_refused(void **state)
{
    static const char *const messages[] = {"values on this rank are NaN or infinite in",
                                           "optimizer.state.exp_avg: 1 of"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rk_checkpoint_loaded loaded;
        struct rk_test_model test, other;
        char *dir = rk_test_new_dir();
        struct rk_status *st;

        open_training(&test, 1, RK_DTYPE_F32);
        open_training(&other, 2, RK_DTYPE_F32);
        train(test.model, 1);
        if (i == 0)
            ((float *)test.model->core->values)[3] = NAN;
        else
            ((float *)test.model->trainer->states[0])[3] = INFINITY;
        assert_ok(save(test.model, dir, 1));
        st = load_as(other.model, dir, 1, 0, &loaded);
        assert_string_equal(rk_status_reason(st), "NON_FINITE");
        assert_true(loaded.is_mixed); /* the worker drops the model */
        assert_fails(st, RK_DATA_LOSS, messages[i]);
        rk_free(dir);
        rk_test_model_close(&other);
        rk_test_model_close(&test);
    }
}

static void test_contents_names(void **state)
{
    static const struct {
        const char *text;
        uint32_t contents; /* 0: refused */
    } cases[] = {
        {"[\"model\"]", RK_CHECKPOINT_MODEL},
        {"[\"extra\", \"optimizer\", \"model\"]", ALL},
        {"[\"hf_model\"]", RK_CHECKPOINT_HF_MODEL},
        {"[\"gradients\", \"model\"]", RK_CHECKPOINT_MODEL | RK_CHECKPOINT_GRADIENTS},
        {"[]", 0},
        {"\"model\"", 0},
        {"[\"models\"]", 0},
        {"[\"model\", \"model\"]", 0},
        {"[1]", 0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *json;
        uint32_t contents;

        assert_ok(rk_json_parse(&json, cases[i].text, strlen(cases[i].text), "contents", 0));
        if (cases[i].contents) {
            assert_ok(rk_checkpoint_contents_read(&contents, json));
            assert_int_equal(contents, cases[i].contents);
        } else {
            assert_code(rk_checkpoint_contents_read(&contents, json), RK_INVALID_ARGUMENT);
        }
        rk_json_free(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_comes_back_bitwise),
        cmocka_unit_test(test_model_alone_gives_masters_and_zero_moments),
        cmocka_unit_test(test_models_that_train_and_others_read_each_other),
        cmocka_unit_test(test_hf_model_is_exported_next_to_the_state),
        cmocka_unit_test(test_gradients_of_the_last_step_are_written),
        cmocka_unit_test(test_gradients_without_a_step_are_refused),
        cmocka_unit_test(test_async_save_has_the_state_of_the_call),
        cmocka_unit_test(test_second_save_finishes_the_first),
        cmocka_unit_test(test_save_without_host_memory_is_the_same),
        cmocka_unit_test(test_cancelled_save_and_load_leave_all_as_it_was),
        cmocka_unit_test(test_failed_save_leaves_nothing),
        cmocka_unit_test(test_damaged_checkpoint_is_refused),
        cmocka_unit_test(test_wrong_descriptions_are_refused),
        cmocka_unit_test(test_other_models_are_refused),
        cmocka_unit_test(test_load_that_fails_halfway_is_reported_as_mixed),
        cmocka_unit_test(test_non_finite_numbers_are_refused),
        cmocka_unit_test(test_contents_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
