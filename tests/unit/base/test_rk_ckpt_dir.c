#include "base/format/rk_ckpt_dir.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

static const char *const only_actor[] = {"actor", NULL};

static char *part_path(const char *dir, int64_t step, const char *role)
{
    char *step_dir = rk_ckpt_step_dir(dir, step), *path = rk_path_join(step_dir, role);

    rk_free(step_dir);
    return path;
}

static void make_path(const char *path)
{
    char *copy = rk_strdup(path);

    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(copy, 0777);
        *slash = '/';
    }
    (void)mkdir(copy, 0777);
    rk_free(copy);
}

/* Writes DIR/NAME with a text; creates missing directories. */
static void put_file(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name), *parent = rk_path_dir(path);

    make_path(parent);
    rk_test_write_file(path, text, strlen(text));
    rk_free(parent);
    rk_free(path);
}

static bool exists(const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);
    struct stat info;
    bool found = lstat(path, &info) == 0;

    rk_free(path);
    return found;
}

static struct rk_status *write_files(struct rk_ckpt_manifest *manifest, const char *temp_dir,
                                     const char *text)
{
    char *shards = rk_path_join(temp_dir, "dist_ckpt");
    char *shard = rk_path_join(shards, "shard_00000.safetensors"), *more = rk_path_join(temp_dir, "more");
    struct rk_status *st = NULL;

    make_path(shards);
    if (!st)
        st = rk_write_file_atomic(shard, text, strlen(text));
    if (!st)
        st = rk_write_file_atomic(more, "x", 1);
    if (!st)
        st = rk_ckpt_manifest_add_file(manifest, temp_dir, "dist_ckpt/shard_00000.safetensors");
    if (!st)
        st = rk_ckpt_manifest_add_file(manifest, temp_dir, "more");
    if (!st)
        st = rk_ckpt_manifest_write(manifest, temp_dir);
    rk_free(shards);
    rk_free(shard);
    rk_free(more);
    return st;
}

static struct rk_ckpt_manifest new_manifest(int64_t step)
{
    struct rk_ckpt_manifest manifest = {.role = rk_strdup("actor"), .global_step = step};

    rk_array_append(&manifest.contents, rk_strdup("hf_model"));
    rk_array_append(&manifest.contents, rk_strdup("extra"));
    manifest.layout = rk_json_new_object();
    rk_json_set(manifest.layout, "world_size", rk_json_new_int(2));
    manifest.state = rk_json_new_object();
    rk_json_set(manifest.state, "lr", rk_json_new_real(0.1));
    return manifest;
}

/* Saves a part of two files as a daemon does. */
static struct rk_status *save(const char *dir, int64_t step, const char *text)
{
    struct rk_ckpt_manifest manifest = new_manifest(step);
    char *part = part_path(dir, step, "actor"), *temp;
    struct rk_status *st = rk_ckpt_begin(&temp, part, "1234");

    if (!st)
        st = write_files(&manifest, temp, text);
    if (!st)
        st = rk_ckpt_publish(temp, part);
    if (st && temp)
        rk_status_ignore(rk_ckpt_remove(temp), "the save failed already");
    rk_ckpt_manifest_fini(&manifest);
    rk_free(temp);
    rk_free(part);
    return st;
}

static void assert_reason(struct rk_status *st, rk_code_t code, const char *reason)
{
    assert_string_equal(rk_status_reason(st), reason);
    assert_code(st, code);
}

static struct rk_status *check(const char *dir, int64_t step, rk_ckpt_check_level_t level)
{
    return rk_ckpt_check_step(dir, step, only_actor, level);
}

static int64_t latest(const char *dir, rk_ckpt_check_level_t level)
{
    int64_t step;

    assert_ok(rk_ckpt_find_latest(&step, dir, only_actor, level));
    return step;
}

/* --- names --- */

static void test_step_names(void **state)
{
    static const struct {
        const char *path;
        int64_t step; /* -1: none */
    } cases[] = {
        {"global_step_20", 20},
        {"/a/b/global_step_7", 7},
        {"global_step_0/", 0},
        {"a/global_step_12//", 12},
        {"global_step_", -1},
        {"global_step_x", -1},
        {"global_step_1x", -1},
        {"global_step_-1", -1},
        {"global_step_01", -1},
        {"global_step_+1", -1},
        {"global_steps_1", -1},
        {"global_step_1/actor", -1},
        {"global_step_99999999999999999999", -1},
    };
    char *path = rk_ckpt_step_dir("/a/", 20);
    int64_t step;

    (void)state;
    assert_string_equal(path, "/a/global_step_20");
    rk_free(path);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        bool is_step = rk_ckpt_step_parse(cases[i].path, &step);

        if (is_step != (cases[i].step >= 0))
            fail_msg("%s", cases[i].path);
        if (is_step)
            assert_int_equal(step, cases[i].step);
    }
}

/* --- manifests --- */

static void test_manifest_round_trip(void **state)
{
    char *dir = rk_test_new_dir(), *part = part_path(dir, 20, "actor");
    struct rk_ckpt_manifest manifest;

    (void)state;
    assert_ok(save(dir, 20, "data"));
    assert_ok(rk_ckpt_check(&manifest, part, RK_CKPT_CHECK_CHECKSUMS));
    assert_string_equal(manifest.role, "actor");
    assert_int_equal(manifest.global_step, 20);
    assert_true(rk_ckpt_manifest_has(&manifest, "extra"));
    assert_false(rk_ckpt_manifest_has(&manifest, "optimizer"));
    assert_int_equal(manifest.files.count, 2);
    assert_int_equal(rk_ckpt_manifest_bytes(&manifest), 5);
    assert_int_equal(rk_json_as_int(rk_json_find(manifest.layout, "world_size"), 0), 2);
    assert_true(rk_json_as_real(rk_json_find(manifest.state, "lr"), 0) == 0.1);
    rk_ckpt_manifest_fini(&manifest);
    rk_free(part);
    rk_free(dir);
}

/* A manifest whose checksum was computed by Python according to docs/formats.md. */
static void test_manifest_of_another_writer_is_read(void **state)
{
    char *path = rk_test_fixture_path("fuzz/corpus/ckpt_manifest/whole"), *text;
    struct rk_ckpt_manifest manifest;
    size_t bytes;

    (void)state;
    text = rk_test_read_file(path, &bytes);
    assert_ok(rk_ckpt_manifest_parse(&manifest, text, bytes, path));
    assert_int_equal(manifest.files.items[0].crc32c, 0x0123abcd);
    rk_ckpt_manifest_fini(&manifest);
    rk_free(text);
    rk_free(path);
}

/* The text of a valid manifest with one replacement and a corrected checksum. */
static char *edited(const char *from, const char *to)
{
    struct rk_ckpt_manifest manifest = new_manifest(20), parsed;
    struct rk_ckpt_file file = {.name = rk_strdup("f"), .bytes = 7, .crc32c = 0x12345678};
    char *text, *at, *result, *sum;
    struct rk_status *st;

    rk_array_append(&manifest.files, file);
    text = rk_ckpt_manifest_format(&manifest);
    at = strstr(text, from);
    if (!at)
        fail_msg("no %s in %s", from, text);
    result = rk_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    rk_ckpt_manifest_fini(&manifest);
    rk_free(text);
    st = rk_ckpt_manifest_parse(&parsed, result, strlen(result), "edited");
    sum = strcmp(rk_status_reason(st), "CHECKSUM") == 0 ? strstr(result, "\"checksum\": \"") : NULL;
    if (sum) /* the message ends with the right checksum */
        memcpy(sum + strlen("\"checksum\": \""), rk_status_message(st) + strlen(rk_status_message(st)) - 8,
               8);
    if (!st)
        rk_ckpt_manifest_fini(&parsed);
    rk_status_free(st);
    return result;
}

static void test_manifest_refuses_bad_members(void **state)
{
    static const struct {
        const char *from, *to;
        rk_code_t code;
        const char *text; /* of the message */
    } cases[] = {
        {"rankd.checkpoint", "other", RK_DATA_LOSS, "format: "},
        {"\"format_version\": 1", "\"format_version\": 2", RK_UNIMPLEMENTED, "format_version 2"},
        {"\"format_version\": 1", "\"format_version\": 0", RK_DATA_LOSS, "format_version: "},
        {"\"actor\"", "\"Actor\"", RK_DATA_LOSS, "role: "},
        {"\"actor\"", "\"\"", RK_DATA_LOSS, "role: "},
        {"\"actor\"", "3", RK_DATA_LOSS, "role: "},
        {"\"global_step\": 20", "\"global_step\": -1", RK_DATA_LOSS, "global_step: "},
        {"\"global_step\": 20", "\"global_step\": 20.0", RK_DATA_LOSS, "global_step: "},
        {"\"global_step\": 20", "\"global_step\": 9007199254740993", RK_DATA_LOSS, "global_step: "},
        {"\"global_step\": 20", "\"step\": 20", RK_DATA_LOSS, "unknown member 'step'"},
        {"\"global_step\": 20,", "", RK_DATA_LOSS, "global_step: "},
        {"\"extra\"", "\"hf_model\"", RK_DATA_LOSS, "contents: "},
        {"\"extra\"", "1", RK_DATA_LOSS, "contents: "},
        {"\"layout\": {", "\"layout\": 1, \"x\": {", RK_DATA_LOSS, "unknown member 'x'"},
        {"\"world_size\": 2\n  }", "\"world_size\": 2\n  }, \"state\": []", RK_DATA_LOSS, "state"},
        {"\"name\": \"f\"", "\"name\": \"../f\"", RK_DATA_LOSS, "files: "},
        {"\"name\": \"f\"", "\"name\": \"/f\"", RK_DATA_LOSS, "files: "},
        {"\"name\": \"f\"", "\"name\": \"a/./f\"", RK_DATA_LOSS, "files: "},
        {"\"name\": \"f\"", "\"name\": \"a//f\"", RK_DATA_LOSS, "files: "},
        {"\"name\": \"f\"", "\"name\": \"f/\"", RK_DATA_LOSS, "files: "},
        {"\"name\": \"f\"", "\"name\": \"f\\n\"", RK_DATA_LOSS, "files: "},
        {"\"name\": \"f\"", "\"nam\": \"f\"", RK_DATA_LOSS, "files: "},
        {"\"bytes\": 7", "\"bytes\": -7", RK_DATA_LOSS, "files: f: "},
        {"\"bytes\": 7", "\"bytes\": \"7\"", RK_DATA_LOSS, "files: f: "},
        {"\"12345678\"", "\"1234567\"", RK_DATA_LOSS, "files: f: "},
        {"\"12345678\"", "\"1234567G\"", RK_DATA_LOSS, "files: f: "},
        {"\"crc32c\": \"12345678\"",
         "\"crc32c\": \"12345678\"}, {\"name\": \"f\", \"bytes\": 1, \"crc32c\": \"00000000\"", RK_DATA_LOSS,
         "listed twice"},
        {"\"checksum\"", "\"sum\"", RK_DATA_LOSS, "checksum: "},
        {"{\n", "[{\n", RK_DATA_LOSS, "edited"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_ckpt_manifest manifest;
        char *text = edited(cases[i].from, cases[i].to);
        struct rk_status *st = rk_ckpt_manifest_parse(&manifest, text, strlen(text), "edited");

        if (rk_status_code(st) != cases[i].code || !strstr(rk_status_message(st), cases[i].text))
            fail_msg("%s: %s: %s", cases[i].to, rk_code_name(rk_status_code(st)), rk_status_message(st));
        assert_null(manifest.role);
        rk_status_free(st);
        rk_free(text);
    }
}

/* Goal: no truncated manifest and none with a flipped bit is accepted as another manifest. */
static void test_manifest_cut_or_flipped_is_refused(void **state)
{
    struct rk_ckpt_manifest manifest = new_manifest(20), parsed;
    char *text = rk_ckpt_manifest_format(&manifest);
    size_t bytes = strlen(text);

    (void)state;
    for (size_t cut = 0; cut + 1 < bytes; cut++) /* the newline at the end may be missing */
        assert_code(rk_ckpt_manifest_parse(&parsed, text, cut, "cut"), RK_DATA_LOSS);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        struct rk_status *st;

        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        st = rk_ckpt_manifest_parse(&parsed, text, bytes, "flipped");
        if (rk_status_code(st) != RK_DATA_LOSS && rk_status_code(st) != RK_UNIMPLEMENTED)
            fail_msg("bit %zu: %s", bit, text);
        rk_status_free(st);
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    }
    assert_ok(rk_ckpt_manifest_parse(&parsed, text, bytes, "whole"));
    rk_ckpt_manifest_fini(&parsed);
    rk_ckpt_manifest_fini(&manifest);
    rk_free(text);
}

/* --- checks --- */

static void test_check_finds_damaged_files(void **state)
{
    static const char *const names[] = {"dist_ckpt/shard_00000.safetensors", "more", RK_CKPT_MANIFEST_FILE};
    char *dir = rk_test_new_dir(), *part;

    (void)state;
    assert_ok(save(dir, 1, "first"));
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        size_t bytes;
        char *path, *data;

        assert_ok(save(dir, 2, "second"));
        part = part_path(dir, 2, "actor");
        path = rk_path_join(part, names[i]);
        data = rk_test_read_file(path, &bytes);
        data[bytes / 2] ^= 4;
        rk_test_write_file(path, data, bytes);
        assert_code(check(dir, 2, RK_CKPT_CHECK_CHECKSUMS), RK_DATA_LOSS);
        assert_int_equal(latest(dir, RK_CKPT_CHECK_CHECKSUMS), 1);
        data[bytes / 2] ^= 4;
        rk_test_write_file(path, data, bytes - (i == 2 ? 2 : 1));
        assert_code(check(dir, 2, RK_CKPT_CHECK_SIZES), RK_DATA_LOSS);
        assert_int_equal(latest(dir, RK_CKPT_CHECK_SIZES), 1);
        rk_test_write_file(path, data, bytes);
        assert_int_equal(latest(dir, RK_CKPT_CHECK_CHECKSUMS), 2);
        assert_int_equal(unlink(path), 0);
        assert_code(check(dir, 2, RK_CKPT_CHECK_SIZES), i == 2 ? RK_NOT_FOUND : RK_DATA_LOSS);
        assert_int_equal(latest(dir, RK_CKPT_CHECK_SIZES), 1);
        assert_int_equal(symlink("/dev/zero", path), 0);
        assert_true(latest(dir, RK_CKPT_CHECK_CHECKSUMS) == 1);
        assert_int_equal(unlink(path), 0);
        rk_free(data);
        rk_free(path);
        rk_free(part);
    }
    rk_free(dir);
}

static void test_check_wants_every_role_and_the_step(void **state)
{
    static const char *const two[] = {"actor", "driver", NULL};
    char *dir = rk_test_new_dir(), *from = rk_ckpt_step_dir(dir, 3), *to = rk_ckpt_step_dir(dir, 4);

    (void)state;
    assert_int_equal(latest(dir, RK_CKPT_CHECK_SIZES), -1);
    assert_ok(save(dir, 3, "data"));
    assert_reason(rk_ckpt_check_step(dir, 3, two, RK_CKPT_CHECK_SIZES), RK_NOT_FOUND, "NO_CHECKPOINT");
    assert_reason(check(dir, 5, RK_CKPT_CHECK_SIZES), RK_NOT_FOUND, "NO_CHECKPOINT");
    assert_int_equal(rename(from, to), 0);
    assert_reason(check(dir, 4, RK_CKPT_CHECK_SIZES), RK_DATA_LOSS, "CHECKPOINT_DAMAGED");
    rk_free(from);
    rk_free(to);
    rk_free(dir);
}

static void test_foreign_checkpoints_are_named(void **state)
{
    static const struct {
        const char *file, *backend;
    } cases[] = {
        {"dist_ckpt/__0_0.distcp", "--backend megatron"},
        {"model/dist_ckpt/__0_0.distcp", "--backend megatron"},
        {"ckpt_contents.json", "--backend megatron"},
        {"model_world_size_8_rank_0.pt", "--backend fsdp"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *dir = rk_test_new_dir(), *part = part_path(dir, 10, "actor");
        struct rk_ckpt_manifest manifest;
        struct rk_status *st;

        put_file(part, cases[i].file, "x");
        st = rk_ckpt_manifest_read(&manifest, part);
        assert_non_null(strstr(rk_status_message(st), cases[i].backend));
        assert_reason(st, RK_UNIMPLEMENTED, "FOREIGN_CHECKPOINT");
        assert_reason(rk_ckpt_check_target(part), RK_ALREADY_EXISTS, "TARGET_EXISTS");
        rk_free(part);
        rk_free(dir);
    }
}

/* --- writing --- */

static void test_publish_replaces_ours_only(void **state)
{
    char *dir = rk_test_new_dir(), *part = part_path(dir, 1, "actor"), *step_dir = rk_ckpt_step_dir(dir, 1),
         *temp;

    (void)state;
    make_path(part); /* empty */
    assert_ok(save(dir, 1, "first"));
    assert_ok(save(dir, 1, "second"));
    assert_ok(check(dir, 1, RK_CKPT_CHECK_CHECKSUMS));
    assert_false(exists(step_dir, ".tmp-actor-1234"));
    rk_free(part);
    part = rk_path_join(step_dir, "other");
    put_file(part, "precious", "x");
    assert_reason(rk_ckpt_begin(&temp, part, "1"), RK_ALREADY_EXISTS, "TARGET_EXISTS");
    assert_null(temp);
    assert_true(exists(part, "precious"));
    put_file(step_dir, "file", "x");
    rk_free(part);
    part = rk_path_join(step_dir, "file");
    assert_reason(rk_ckpt_begin(&temp, part, "1"), RK_ALREADY_EXISTS, "TARGET_EXISTS");
    assert_code(rk_ckpt_begin(&temp, "/a/", "1"), RK_INVALID_ARGUMENT);
    assert_code(rk_ckpt_begin(&temp, "/a/.b", "1"), RK_INVALID_ARGUMENT);
    rk_free(part);
    rk_free(step_dir);
    rk_free(dir);
}

static void test_remove_follows_no_link(void **state)
{
    char *dir = rk_test_new_dir(), *victim = rk_path_join(dir, "victim"), *tree = rk_path_join(dir, "tree");
    char *link_path, *top;

    (void)state;
    put_file(victim, "file", "x");
    put_file(tree, "a/b/c", "x");
    link_path = rk_path_join(tree, "link");
    assert_int_equal(symlink(victim, link_path), 0);
    assert_ok(rk_ckpt_remove(tree));
    assert_false(exists(dir, "tree"));
    assert_true(exists(victim, "file"));
    assert_ok(rk_ckpt_remove(tree));
    top = rk_path_join(dir, "top");
    assert_int_equal(symlink(victim, top), 0);
    assert_code(rk_ckpt_remove(top), RK_INVALID_ARGUMENT);
    assert_true(exists(victim, "file"));
    rk_free(top);
    rk_free(link_path);
    rk_free(tree);
    rk_free(victim);
    rk_free(dir);
}

/* Goal: after an interrupted removal nothing is read as a complete checkpoint. */
static void test_remove_takes_the_manifest_first(void **state)
{
    char *dir = rk_test_new_dir(), *step_dir = rk_ckpt_step_dir(dir, 1);

    (void)state;
    assert_ok(save(dir, 1, "data"));
    setenv("RANKD_FAULTS", "ckpt.remove=fail", 1);
    assert_code(rk_ckpt_remove(step_dir), RK_INTERNAL);
    unsetenv("RANKD_FAULTS");
    assert_true(exists(step_dir, "actor/more"));
    assert_code(check(dir, 1, RK_CKPT_CHECK_SIZES), RK_NOT_FOUND);
    rk_free(step_dir);
    rk_free(dir);
}

static void test_sweep_removes_what_crashes_left(void **state)
{
    char *dir = rk_test_new_dir(), *one = rk_ckpt_step_dir(dir, 1), *two = rk_ckpt_step_dir(dir, 2);

    (void)state;
    assert_ok(save(dir, 1, "data"));
    put_file(one, ".tmp-actor-99/dist_ckpt/x", "x");
    put_file(one, ".tmp-critic-99/dist_ckpt/x", "x");
    put_file(two, ".tmp-actor-98/x", "x");
    assert_ok(save(dir, 1, "again")); /* removes leftovers of its own part */
    assert_false(exists(one, ".tmp-actor-99"));
    assert_true(exists(one, ".tmp-critic-99"));
    assert_ok(rk_ckpt_sweep(dir));
    assert_false(exists(one, ".tmp-critic-99"));
    assert_false(exists(dir, "global_step_2"));
    assert_ok(check(dir, 1, RK_CKPT_CHECK_CHECKSUMS));
    rk_free(one);
    rk_free(two);
    rk_free(dir);
}

/* Goal: the replaced part is kept until the new names are on the disk: if syncing the step's directory fails,
 * both are complete. */
static void test_publish_keeps_the_old_until_the_new_is_synced(void **state)
{
    struct rk_ckpt_manifest manifest = new_manifest(1);
    char *dir = rk_test_new_dir(), *part = part_path(dir, 1, "actor"), *temp;

    (void)state;
    assert_ok(save(dir, 1, "first"));
    assert_ok(rk_ckpt_begin(&temp, part, "1234"));
    assert_ok(write_files(&manifest, temp, "second"));
    setenv("RANKD_FAULTS", "file.sync_dir=fail@2", 1); /* the first sync is that of the new part itself */
    assert_code(rk_ckpt_publish(temp, part), RK_INTERNAL);
    unsetenv("RANKD_FAULTS");
    assert_ok(check(dir, 1, RK_CKPT_CHECK_CHECKSUMS));
    assert_true(exists(temp, RK_CKPT_MANIFEST_FILE));
    assert_ok(rk_ckpt_remove(temp));
    rk_ckpt_manifest_fini(&manifest);
    rk_free(temp);
    rk_free(part);
    rk_free(dir);
}

/* Runs the save in a separate process with a fault. Returns whether the fault was hit: the process was
 * killed, or the save failed. */
static bool save_is_hit(const char *dir, int64_t step, const char *faults)
{
    pid_t pid;
    int status;

    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rk_status *st;

        setenv("RANKD_FAULTS", faults, 1);
        st = save(dir, step, "a text of the second");
        _exit(st ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 1;
}

/* Goal: when a save is killed or fails at any file operation, the latest checkpoint is the previous one, or
 * the new one is complete; the next save removes leftovers. */
static void test_save_interrupted_anywhere_is_never_half(void **state)
{
    static const char *const points[] = {"file.write", "file.sync", "file.rename", "file.sync_dir",
                                         "ckpt.rename"};
    static const char *const actions[] = {"kill", "fail"};
    char *dir = rk_test_new_dir(), *step_dir = rk_ckpt_step_dir(dir, 2);
    int num_hits = 0;

    (void)state;
    assert_ok(save(dir, 1, "first"));
    for (size_t i = 0; i < RK_ARRAY_LEN(points) * RK_ARRAY_LEN(actions); i++) {
        bool is_hit = true;

        for (int hit = 1; is_hit; hit++) {
            char *faults = rk_format("%s=%s@%d", points[i / 2], actions[i % 2], hit);

            is_hit = save_is_hit(dir, 2, faults);
            num_hits += is_hit;
            if (exists(step_dir, "actor"))
                assert_int_equal(latest(dir, RK_CKPT_CHECK_CHECKSUMS), 2);
            else
                assert_int_equal(latest(dir, RK_CKPT_CHECK_CHECKSUMS), 1);
            assert_true(is_hit || exists(step_dir, "actor"));
            if (i % 2 == 1 || !is_hit)
                assert_false(exists(step_dir, ".tmp-actor-1234"));
            assert_ok(rk_ckpt_remove(exists(step_dir, "actor") ? step_dir : "/nowhere"));
            rk_free(faults);
        }
    }
    assert_true(num_hits >= 24); /* the fault points exist */
    rk_free(step_dir);
    rk_free(dir);
}

/* --- the tracker --- */

static void test_tracker(void **state)
{
    static const char *const bad[] = {"", "x", "-1", "1x", "01", "1 2", "12345678901234567890123"};
    char *dir = rk_test_new_dir(), *path = rk_path_join(dir, RK_CKPT_TRACKER_FILE), *text;
    size_t bytes;
    int64_t step;

    (void)state;
    assert_ok(rk_ckpt_tracker_read(&step, dir));
    assert_int_equal(step, -1);
    assert_ok(rk_ckpt_tracker_write(dir, 120));
    text = rk_test_read_file(path, &bytes);
    assert_string_equal(text, "120");
    rk_free(text);
    assert_ok(rk_ckpt_tracker_read(&step, dir));
    assert_int_equal(step, 120);
    put_file(dir, RK_CKPT_TRACKER_FILE, "7\n");
    assert_ok(rk_ckpt_tracker_read(&step, dir));
    assert_int_equal(step, 7);
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        put_file(dir, RK_CKPT_TRACKER_FILE, bad[i]);
        assert_reason(rk_ckpt_tracker_read(&step, dir), RK_DATA_LOSS, "CHECKPOINT_DAMAGED");
    }
    rk_free(path);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step_names),
        cmocka_unit_test(test_manifest_round_trip),
        cmocka_unit_test(test_manifest_of_another_writer_is_read),
        cmocka_unit_test(test_manifest_refuses_bad_members),
        cmocka_unit_test(test_manifest_cut_or_flipped_is_refused),
        cmocka_unit_test(test_check_finds_damaged_files),
        cmocka_unit_test(test_check_wants_every_role_and_the_step),
        cmocka_unit_test(test_foreign_checkpoints_are_named),
        cmocka_unit_test(test_publish_replaces_ours_only),
        cmocka_unit_test(test_publish_keeps_the_old_until_the_new_is_synced),
        cmocka_unit_test(test_remove_follows_no_link),
        cmocka_unit_test(test_remove_takes_the_manifest_first),
        cmocka_unit_test(test_sweep_removes_what_crashes_left),
        cmocka_unit_test(test_save_interrupted_anywhere_is_never_half),
        cmocka_unit_test(test_tracker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
