/* The driver's part of checkpoints, with directories like those written by daemons: which checkpoint a run
 * resumes from, which ones it refuses, what is removed, and which run may save where. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "rl/rk_checkpoints.h"
#include "rl/rk_job.h"
#include "tests/support/test.h"

#define EXAMPLE    RK_TEST_SOURCE_DIR "/examples/digits"
#define ACTOR      "actor_rollout_ref.actor."
#define SHARD      "dist_ckpt/shard.bin"
#define STEPS      "trainer.total_training_steps=100"
#define MAX_CHANGE 6

/* A job in a directory of its own, with its inputs read. */
struct fixture {
    char *job_dir, *dir; /* directory of the job; directory of its checkpoints */
    struct rk_config *job;
    struct rk_flow_inputs inputs;
    struct rk_checkpoints checkpoints;
};

static void copy_example(const char *job_dir, const char *name)
{
    char *from = rk_path_join(EXAMPLE, name), *to = rk_path_join(job_dir, name), *text;
    size_t bytes;

    text = rk_test_read_file(from, &bytes);
    rk_test_write_file(to, text, bytes);
    rk_free(text);
    rk_free(from);
    rk_free(to);
}

/* Reads the job again, with other values ("key=value", ended by NULL). */
static void load(struct fixture *f, const char *const *changes)
{
    const char *overrides[MAX_CHANGE + 3] = {0};
    char *file = rk_path_join(f->job_dir, "grpo.json"), *dir;
    int64_t count = 0;

    dir = rk_format("trainer.default_local_dir=%s", f->dir);
    overrides[count++] = dir;
    overrides[count++] = "trainer.save_freq=5";
    overrides[count++] = STEPS;
    for (; changes && *changes; changes++)
        overrides[count++] = *changes;
    rk_flow_inputs_fini(&f->inputs);
    rk_config_destroy(f->job);
    assert_ok(rk_job_load(&f->job, file, overrides, count));
    assert_ok(rk_job_check(f->job, 2));
    assert_ok(rk_flow_inputs_load(&f->inputs, f->job, f->job_dir));
    rk_free(dir);
    rk_free(file);
}

static void open_fixture(struct fixture *f)
{
    static int count;
    static const char *const files[] = {"grpo.json", "config.json", "tokenizer.json", "train.jsonl"};
    char *name = rk_format("job-%d", ++count);

    *f = (struct fixture){.checkpoints = {.lock = -1}};
    f->job_dir = rk_test_temp_path(name);
    f->dir = rk_path_join(f->job_dir, "ckpt");
    assert_int_equal(mkdir(f->job_dir, 0777), 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(files); i++)
        copy_example(f->job_dir, files[i]);
    load(f, NULL);
    rk_free(name);
}

static struct rk_status *open_checkpoints(struct fixture *f)
{
    rk_checkpoints_fini(&f->checkpoints);
    return rk_checkpoints_open(
        &f->checkpoints,
        &(struct rk_checkpoints_args){.job = f->job, .job_dir = f->job_dir, .inputs = &f->inputs});
}

static void close_fixture(struct fixture *f)
{
    rk_checkpoints_fini(&f->checkpoints);
    rk_flow_inputs_fini(&f->inputs);
    rk_config_destroy(f->job);
    rk_free(f->job_dir);
    rk_free(f->dir);
}

static char *part_path(const struct fixture *f, int64_t step, const char *part)
{
    char *step_dir = rk_ckpt_step_dir(f->dir, step), *path = rk_path_join(step_dir, part);

    rk_free(step_dir);
    return path;
}

/* The files that the daemons of the actor write. */
static void write_actor(const struct fixture *f, int64_t step)
{
    char *part = part_path(f, step, RK_CHECKPOINT_ACTOR), *temp, *folder, *shard;
    struct rk_ckpt_manifest manifest = {.role = rk_strdup("actor"), .global_step = step};

    rk_array_append(&manifest.contents, rk_strdup("extra"));
    assert_ok(rk_ckpt_begin(&temp, part, "test"));
    folder = rk_path_join(temp, "dist_ckpt");
    shard = rk_path_join(temp, SHARD);
    assert_int_equal(mkdir(folder, 0777), 0);
    rk_test_write_file(shard, "0123456789", 10);
    assert_ok(rk_ckpt_manifest_add_file(&manifest, temp, SHARD));
    assert_ok(rk_ckpt_manifest_write(&manifest, temp));
    assert_ok(rk_ckpt_publish(temp, part));
    rk_ckpt_manifest_fini(&manifest);
    rk_free(shard);
    rk_free(folder);
    rk_free(temp);
    rk_free(part);
}

static struct rk_json *make_state(const struct fixture *f, int64_t step)
{
    struct rk_run_position position =
        rk_run_position_after(f->job, rk_flow_inputs_num_rows(&f->inputs), step);

    return rk_run_state_make(f->checkpoints.identity, f->job, &position,
                             &(struct rk_kl_ctrl){.kl_coef = 0.0035}, step);
}

/* A complete checkpoint of a run. */
static void save(const struct fixture *f, int64_t step)
{
    struct rk_json *state = make_state(f, step);

    write_actor(f, step);
    assert_ok(rk_checkpoints_write_state(&f->checkpoints, state, step));
    assert_ok(rk_checkpoints_complete(&f->checkpoints, step));
    rk_json_free(state);
}

static bool has_step(const struct fixture *f, int64_t step)
{
    char *path = rk_ckpt_step_dir(f->dir, step);
    bool has = access(path, F_OK) == 0;

    rk_free(path);
    return has;
}

static void flip_byte(const struct fixture *f, int64_t step, const char *file)
{
    char *path = part_path(f, step, file), *text;
    size_t bytes;

    text = rk_test_read_file(path, &bytes);
    text[bytes / 2] ^= 1;
    rk_test_write_file(path, text, bytes);
    rk_free(text);
    rk_free(path);
}

static void write_tracker(const struct fixture *f, const char *text)
{
    char *path = rk_path_join(f->dir, RK_CKPT_TRACKER_FILE);

    rk_test_write_file(path, text, strlen(text));
    rk_free(path);
}

/* --- the checkpoint that a run resumes from --- */

static void test_checkpoints_open_takes_the_newest_complete_one(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f);
    assert_ok(open_checkpoints(&f));
    assert_null(f.checkpoints.resume_path);
    save(&f, 5);
    save(&f, 10);
    write_actor(&f, 15); /* killed before the driver's part was written */
    assert_ok(open_checkpoints(&f));
    assert_int_equal(f.checkpoints.resume_step, 10);
    assert_int_equal(f.checkpoints.changes.bytes, 0);
    close_fixture(&f);
}

/* Goal: for every kind of damage to the newest checkpoint, the previous one is found. */
static void test_checkpoints_open_passes_over_damaged_ones(void **state)
{
    static const char *const files[] = {"actor/" SHARD, "actor/MANIFEST.json", "driver/MANIFEST.json"};
    struct fixture f;

    (void)state;
    for (size_t i = 0; i < 2 * RK_ARRAY_LEN(files); i++) {
        const char *file = files[i / 2];
        char *path;

        open_fixture(&f);
        assert_ok(open_checkpoints(&f));
        save(&f, 5);
        save(&f, 10);
        path = part_path(&f, 10, file);
        print_message("%s %s\n", i % 2 ? "missing" : "flipped byte in", file);
        if (i % 2)
            assert_int_equal(unlink(path), 0);
        else
            flip_byte(&f, 10, file);
        assert_ok(open_checkpoints(&f));
        assert_int_equal(f.checkpoints.resume_step, 5);
        rk_free(path);
        close_fixture(&f);
    }
}

struct tracker_case {
    const char *label, *text;
    bool has_checkpoint;
    int64_t step; /* -1: refused */
};

static void test_checkpoints_open_does_not_trust_the_tracker(void **state)
{
    static const struct tracker_case cases[] = {
        {"names another step", "7", true, 5},
        {"holds no number", "latest\n", true, 5},
        {"holds no number, and nothing is there", "latest\n", false, -1},
        {"names a step that is gone", "5", false, -1},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct fixture f;

        print_message("%s\n", cases[i].label);
        open_fixture(&f);
        assert_ok(open_checkpoints(&f));
        if (cases[i].has_checkpoint)
            save(&f, 5);
        write_tracker(&f, cases[i].text);
        if (cases[i].step < 0)
            assert_code(open_checkpoints(&f), RK_DATA_LOSS);
        else
            assert_ok(open_checkpoints(&f));
        if (cases[i].step >= 0)
            assert_int_equal(f.checkpoints.resume_step, cases[i].step);
        close_fixture(&f);
    }
}

static void test_checkpoints_open_named_path(void **state)
{
    struct fixture f;
    char *path, *from;

    (void)state;
    open_fixture(&f);
    assert_ok(open_checkpoints(&f));
    save(&f, 5);
    path = rk_ckpt_step_dir(f.dir, 5);
    from = rk_format("trainer.resume_from_path=%s/", path);
    load(&f, (const char *const[]){"trainer.resume_mode=resume_path", from, NULL});
    assert_ok(open_checkpoints(&f));
    assert_int_equal(f.checkpoints.resume_step, 5);
    write_actor(&f, 10); /* left by the abandoned continuation: auto would resume from it after the next
                          * crash */
    assert_fails(open_checkpoints(&f), RK_INVALID_ARGUMENT, "up to step 10");
    load(&f, (const char *const[]){"trainer.resume_mode=resume_path", "trainer.save_freq=-1", from, NULL});
    assert_ok(open_checkpoints(&f));
    rk_free(path);
    path = part_path(&f, 5, "driver/MANIFEST.json"); /* as rankctl checkpoint save leaves it */
    assert_int_equal(unlink(path), 0);
    assert_ok(open_checkpoints(&f));
    assert_int_equal(f.checkpoints.resume_step, 5);
    flip_byte(&f, 5, "actor/" SHARD);
    assert_fails(open_checkpoints(&f), RK_DATA_LOSS, SHARD);
    load(&f, (const char *const[]){"trainer.resume_mode=resume_path",
                                   "trainer.resume_from_path=/nowhere/global_step_3", NULL});
    assert_fails(open_checkpoints(&f), RK_NOT_FOUND, "trainer.resume_from_path");
    rk_free(path);
    rk_free(from);
    close_fixture(&f);
}

/* Goal: a new run does not write its checkpoints among those of another run. */
static void test_checkpoints_open_disable_refuses_a_used_directory(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f);
    load(&f, (const char *const[]){"trainer.resume_mode=disable", NULL});
    assert_ok(open_checkpoints(&f));
    save(&f, 5);
    assert_fails(open_checkpoints(&f), RK_INVALID_ARGUMENT, "up to step 5");
    load(&f, (const char *const[]){"trainer.resume_mode=disable", "trainer.save_freq=-1", NULL});
    assert_ok(open_checkpoints(&f));
    assert_null(f.checkpoints.resume_path);
    close_fixture(&f);
}

static void test_checkpoints_open_second_driver_is_refused(void **state)
{
    struct fixture f;
    struct rk_checkpoints second;
    struct rk_checkpoints_args args;
    struct rk_status *st;

    (void)state;
    open_fixture(&f);
    assert_ok(open_checkpoints(&f));
    args = (struct rk_checkpoints_args){.job = f.job, .job_dir = f.job_dir, .inputs = &f.inputs};
    st = rk_checkpoints_open(&second, &args);
    assert_string_equal(rk_status_reason(st), "HELD");
    assert_non_null(strstr(rk_status_message(st), f.dir));
    rk_status_free(st);
    rk_checkpoints_fini(&second);
    rk_checkpoints_fini(&f.checkpoints);
    assert_ok(rk_checkpoints_open(&second, &args));
    rk_checkpoints_fini(&second);
    close_fixture(&f);
}

static void test_checkpoints_open_removes_what_a_crash_left(void **state)
{
    struct fixture f;
    char *part, *temp;

    (void)state;
    open_fixture(&f);
    assert_ok(open_checkpoints(&f));
    part = part_path(&f, 5, RK_CHECKPOINT_ACTOR);
    assert_ok(rk_ckpt_begin(&temp, part, "e7"));
    rk_checkpoints_fini(&f.checkpoints);
    assert_ok(open_checkpoints(&f));
    assert_false(has_step(&f, 5));
    rk_free(temp);
    rk_free(part);
    close_fixture(&f);
}

/* --- settings that may change between runs --- */

struct change_case {
    const char *change, *named;
    bool is_refused;
};

static void test_checkpoints_open_changed_job(void **state)
{
    static const struct change_case cases[] = {
        {ACTOR "optim.lr=0.5", ACTOR "optim.lr: 0.001 in the checkpoint, 0.5 now", false},
        {"trainer.total_training_steps=200", "trainer.total_training_steps", false},
        {ACTOR "megatron.tensor_model_parallel_size=1", "tensor_model_parallel_size", false},
        {"trainer.save_freq=10", "trainer.save_freq: 5 in the checkpoint, 10 now", false},
        {"data.seed=2", "data.seed: 1 in the checkpoint, 2 now", true},
        {"data.shuffle=false", "data.shuffle", true},
        {"data.train_batch_size=30", "data.train_batch_size: 90 in the checkpoint, 30 now", true},
        {"data.max_prompt_length=9", "data.max_prompt_length", true},
        {"actor_rollout_ref.rollout.n=8", "rollout.n: 16 in the checkpoint, 8 now", true},
        {"actor_rollout_ref.rollout.seed=1", "rollout.seed", true},
        {ACTOR "megatron.dtype=bfloat16", "megatron.dtype", true},
    };
    struct fixture f;

    (void)state;
    open_fixture(&f);
    assert_ok(open_checkpoints(&f));
    save(&f, 5);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        print_message("%s\n", cases[i].change);
        load(&f, (const char *const[]){cases[i].change, NULL});
        if (cases[i].is_refused) {
            assert_fails(open_checkpoints(&f), RK_INVALID_ARGUMENT, cases[i].named);
            continue;
        }
        assert_ok(open_checkpoints(&f));
        assert_non_null(strstr(rk_str_text(&f.checkpoints.changes), cases[i].named));
    }
    close_fixture(&f);
}

struct file_case {
    const char *file, *from, *to, *named;
};

/* Goal: data, tokenizer and model are compared by content. */
static void test_checkpoints_open_changed_files_are_refused(void **state)
{
    static const struct file_case cases[] = {
        {"train.jsonl", "\n", " \n", "train.jsonl'"},
        {"tokenizer.json", "{", " {", "tokenizer.json'"},
        {"config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3",
         "num_hidden_layers: 2 in the checkpoint, 3 now"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct fixture f;
        char *path, *text, *at;
        struct rk_str changed = {0};

        print_message("%s\n", cases[i].file);
        open_fixture(&f);
        assert_ok(open_checkpoints(&f));
        save(&f, 5);
        path = rk_path_join(f.job_dir, cases[i].file);
        text = rk_test_read_file(path, NULL);
        at = strstr(text, cases[i].from);
        assert_non_null(at);
        rk_str_appendf(&changed, "%.*s%s%s", (int)(at - text), text, cases[i].to, at + strlen(cases[i].from));
        rk_test_write_file(path, changed.text, changed.bytes);
        load(&f, NULL);
        assert_fails(open_checkpoints(&f), RK_INVALID_ARGUMENT, cases[i].named);
        rk_str_fini(&changed);
        rk_free(text);
        rk_free(path);
        close_fixture(&f);
    }
}

/* Goal: an incomplete state is refused and the missing member is named. */
static void test_run_state_check_missing_members_are_named(void **state)
{
    static const char *const paths[] = {"config",     "data.files", "data.tokenizer",
                                        "data.epoch", "sampling",   "data.num_rows"};
    struct fixture f;

    (void)state;
    open_fixture(&f);
    assert_ok(open_checkpoints(&f));
    for (size_t i = 0; i < RK_ARRAY_LEN(paths); i++) {
        struct rk_run_position position = rk_run_position_after(f.job, rk_flow_inputs_num_rows(&f.inputs), 5);
        struct rk_json *saved = make_state(&f, 5);
        struct rk_str changes = {0};
        char *parent = rk_strdup(paths[i]), *dot = strchr(parent, '.');

        if (dot)
            *dot = '\0';
        rk_json_remove(dot ? rk_json_find(saved, parent) : saved, dot ? dot + 1 : parent);
        assert_fails(rk_run_state_check(saved, f.checkpoints.identity, &position, 5, &changes), RK_DATA_LOSS,
                     paths[i]);
        rk_free(parent);
        rk_str_fini(&changes);
        rk_json_free(saved);
    }
    close_fixture(&f);
}

/* Goal: the KL coefficient is restored as the controller had set it; an invalid one is refused. */
static void test_run_state_has_the_weight_of_the_kl(void **state)
{
    static const char *const bad[] = {"null", "\"0.1\"", "0", "-0.5"};
    struct fixture f;
    struct rk_json *saved;
    double kl_coef;

    (void)state;
    open_fixture(&f);
    assert_ok(open_checkpoints(&f));
    saved = make_state(&f, 5);
    assert_ok(rk_run_state_kl_coef(&kl_coef, saved));
    assert_true(isnan(kl_coef)); /* the coefficient of the job, which is fixed */
    rk_json_free(saved);
    load(&f,
         (const char *const[]){"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", NULL});
    saved = make_state(&f, 5);
    assert_ok(rk_run_state_kl_coef(&kl_coef, saved));
    assert_true(kl_coef == 0.0035);
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_json *value;

        assert_ok(rk_json_parse(&value, bad[i], strlen(bad[i]), "value", 0));
        rk_json_set_path(saved, "controllers.kl_ctrl.kl_coef", value);
        assert_fails(rk_run_state_kl_coef(&kl_coef, saved), RK_DATA_LOSS, "controllers.kl_ctrl.kl_coef");
    }
    rk_json_free(saved);
    assert_ok(open_checkpoints(&f));
    save(&f, 5);
    assert_ok(open_checkpoints(&f));
    assert_true(f.checkpoints.resume_kl_coef == 0.0035);
    close_fixture(&f);
}

/* Goal: the position follows the epochs. The example has 90 prompts: 3 batches of 30. */
static void test_run_position_after_follows_the_epochs(void **state)
{
    struct fixture f;
    struct rk_run_position position;

    (void)state;
    open_fixture(&f);
    load(&f, (const char *const[]){"data.train_batch_size=30", NULL});
    position = rk_run_position_after(f.job, rk_flow_inputs_num_rows(&f.inputs), 5);
    assert_int_equal(position.num_rows, 90);
    assert_int_equal(position.epoch, 1);
    assert_int_equal(position.next_row, 60);
    assert_int_equal(position.next_random_stream, 5 * 30 * 16);
    close_fixture(&f);
}

/* Goal: a run that filters groups resumes at the position of its state; an impossible position is refused. */
static void test_run_position_read_uses_the_state(void **state)
{
    static const struct {
        const char *path;
        int64_t value;
    } bad[] = {{"data.next_row", 90}, {"data.epoch", -1}, {"sampling.next_stream", -1}};
    struct rk_run_position position = {.epoch = 2, .next_row = 7, .num_rows = 90, .next_random_stream = 4321},
                           got;
    struct rk_json *saved;
    struct fixture f;

    (void)state;
    open_fixture(&f);
    assert_ok(open_checkpoints(&f));
    saved = rk_run_state_make(f.checkpoints.identity, f.job, &position, &(struct rk_kl_ctrl){0}, 5);
    assert_ok(rk_run_position_read(&got, saved));
    assert_memory_equal(&got, &position, sizeof(got));
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_json *damaged = rk_json_clone(saved);

        rk_json_set_path(damaged, bad[i].path, rk_json_new_int(bad[i].value));
        assert_fails(rk_run_position_read(&got, damaged), RK_DATA_LOSS, bad[i].path);
        rk_json_free(damaged);
    }
    rk_json_free(saved);
    close_fixture(&f);
}

/* --- removal of old checkpoints --- */

static void assert_steps(const struct fixture *f, const char *expected)
{
    struct rk_str text = {0};

    for (int64_t step = 0; step < 60; step++) {
        if (has_step(f, step))
            rk_str_appendf(&text, "%lld ", (long long)step);
    }
    assert_string_equal(rk_str_text(&text), expected);
    rk_str_fini(&text);
}

static void test_checkpoints_prune_keeps_what_is_needed(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f);
    assert_ok(open_checkpoints(&f));
    for (int64_t step = 5; step <= 25; step += 5)
        save(&f, step);
    write_actor(&f, 7); /* without the driver's part: saved manually */
    assert_ok(rk_checkpoints_prune(&f.checkpoints, 3));
    assert_steps(&f, "7 15 20 25 ");
    write_tracker(&f, "15");
    assert_ok(rk_checkpoints_prune(&f.checkpoints, 1));
    assert_steps(&f, "7 15 25 ");
    assert_ok(open_checkpoints(&f)); /* resumes from 25 */
    save(&f, 30);
    save(&f, 35);
    assert_ok(rk_checkpoints_prune(&f.checkpoints, 1));
    assert_steps(&f, "7 25 35 ");
    close_fixture(&f);
}

/* Goal: the tracker file never names an incomplete checkpoint. */
static void test_checkpoints_complete_needs_all_parts(void **state)
{
    struct fixture f;
    struct rk_json *saved;
    int64_t tracked;

    (void)state;
    open_fixture(&f);
    assert_ok(open_checkpoints(&f));
    saved = make_state(&f, 5);
    assert_ok(rk_checkpoints_write_state(&f.checkpoints, saved, 5));
    assert_fails(rk_checkpoints_complete(&f.checkpoints, 5), RK_NOT_FOUND, "one directory for driver and");
    assert_fails(rk_checkpoints_complete(&f.checkpoints, 6), RK_NOT_FOUND,
                 "before the driver saved its part of step 6");
    assert_ok(rk_ckpt_tracker_read(&tracked, f.dir));
    assert_int_equal(tracked, -1);
    rk_json_free(saved);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoints_open_takes_the_newest_complete_one),
        cmocka_unit_test(test_checkpoints_open_passes_over_damaged_ones),
        cmocka_unit_test(test_checkpoints_open_does_not_trust_the_tracker),
        cmocka_unit_test(test_checkpoints_open_named_path),
        cmocka_unit_test(test_checkpoints_open_disable_refuses_a_used_directory),
        cmocka_unit_test(test_checkpoints_open_second_driver_is_refused),
        cmocka_unit_test(test_checkpoints_open_removes_what_a_crash_left),
        cmocka_unit_test(test_checkpoints_open_changed_job),
        cmocka_unit_test(test_checkpoints_open_changed_files_are_refused),
        cmocka_unit_test(test_run_state_check_missing_members_are_named),
        cmocka_unit_test(test_run_state_has_the_weight_of_the_kl),
        cmocka_unit_test(test_run_position_after_follows_the_epochs),
        cmocka_unit_test(test_run_position_read_uses_the_state),
        cmocka_unit_test(test_checkpoints_prune_keeps_what_is_needed),
        cmocka_unit_test(test_checkpoints_complete_needs_all_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
