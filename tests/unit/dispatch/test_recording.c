/* The files of a recording: round trips, and detection of truncated and changed files. */
#include "dispatch/rk_recording.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

#define NUM_ROWS 3
#define DEAD_DIR "/nonexistent/record"

static struct rk_batch *make_batch(void)
{
    static const char *const texts[] = {"a", "", "\303\274"};
    static const int64_t cu_seqlens[] = {0, 2, 2, 5};
    const int64_t shape[] = {NUM_ROWS, 2}, packed_shape[] = {5};
    struct rk_column *column;
    struct rk_batch *batch;
    void *data;

    assert_ok(rk_batch_create(&batch, NUM_ROWS));
    assert_ok(rk_batch_add_dense(batch, "ids", RK_DTYPE_I64, 2, shape, &data));
    for (int64_t i = 0; i < NUM_ROWS * 2; i++)
        ((int64_t *)data)[i] = 100 + i;
    assert_ok(rk_column_create_packed(&column, RK_DTYPE_F32, NUM_ROWS, cu_seqlens, 1, packed_shape));
    for (int64_t i = 0; i < 5; i++)
        ((float *)rk_column_data(column))[i] = 0.5f * (float)i;
    assert_ok(rk_batch_put_new(batch, "values", column));
    assert_ok(rk_column_create_strings(&column, NUM_ROWS, texts, false));
    assert_ok(rk_batch_put_new(batch, "texts", column));
    return batch;
}

/* A call with the batch. */
static struct rk_recording_entry *make_call(const struct rk_batch *batch)
{
    struct rk_execute_request request = {.kind = RK_EXECUTE_HEADER,
                                         .header = {.role = "actor", .method = "update_actor"}};
    struct rk_recording_entry *entry = rk_recording_entry_create(RK_RECORDING_CALL);

    rk_json_set(entry->meta, "seq", rk_json_new_int(7));
    assert_ok(rk_recording_entry_set_batch(entry, &request.header.input, batch, NULL));
    rk_pack_execute_request(&entry->message, &request);
    return entry;
}

static void put(struct rk_recording_writer *writer, struct rk_recording_entry *entry)
{
    assert_ok(rk_recording_writer_put(writer, entry));
    rk_recording_entry_destroy(entry);
}

/* A lease, the call, and the end; rk_free the folder. */
static char *write_recording(const char *name, const struct rk_batch *batch)
{
    char *dir = rk_test_temp_path(name);
    struct rk_json *info = rk_json_new_object();
    struct rk_recording_entry *end = rk_recording_entry_create(RK_RECORDING_END);
    struct rk_recording_writer *writer;

    rk_json_set(info, "device", rk_json_new_string("cpu"));
    assert_ok(rk_recording_writer_open(&writer, dir, info));
    put(writer, rk_recording_entry_create(RK_RECORDING_LEASE));
    put(writer, make_call(batch));
    rk_json_set(end->meta, "reason", rk_json_new_string(RK_RECORDING_WHOLE));
    put(writer, end);
    rk_recording_writer_close(writer);
    rk_json_free(info);
    return dir;
}

/* Goal: entries, messages and tensors are read back unchanged; only the owner can access the directory. */
static void test_rk_recording_open_returns_what_was_put(void **state)
{
    struct rk_batch *batch = make_batch(), *back;
    char *dir = write_recording("whole", batch);
    struct rk_arena *arena = rk_arena_create(4096, 0);
    const struct rk_recording_item *item;
    struct rk_execute_request request;
    struct rk_recording *recording;
    struct stat info;

    (void)state;
    assert_int_equal(stat(dir, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_ok(rk_recording_open(&recording, dir, 0));
    assert_int_equal(rk_recording_num_items(recording), 3);
    assert_string_equal(rk_recording_end_reason(recording), RK_RECORDING_WHOLE);
    assert_string_equal(rk_json_as_string(rk_json_find(rk_recording_info(recording), "device"), ""), "cpu");
    item = rk_recording_item_at(recording, 1);
    assert_int_equal(item->kind, RK_RECORDING_CALL);
    assert_int_equal(item->number, 2);
    assert_int_equal(rk_json_as_int(rk_json_find(item->meta, "seq"), 0), 7);
    assert_ok(rk_unpack_execute_request(&request, arena, item->message, item->message_bytes));
    assert_string_equal(request.header.method, "update_actor");
    assert_ok(rk_recording_read_batch(&back, recording, item, &request.header.input));
    assert_int_equal(rk_batch_num_columns(back), 3);
    for (int64_t i = 0; i < rk_batch_num_columns(batch); i++)
        assert_true(
            rk_column_equal(rk_batch_column_at(batch, i), rk_batch_find(back, rk_batch_name_at(batch, i))));
    rk_batch_destroy(back);
    rk_batch_destroy(batch);
    rk_recording_close(recording);
    rk_arena_destroy(arena);
    rk_free(dir);
}

static char *calls_path(const char *dir)
{
    return rk_path_join(dir, RK_RECORDING_CALLS_FILE);
}

/* Goal: wherever the file is truncated, the two cases are told apart: whole entries without an end entry, or
 * a truncated entry, which RK_RECORDING_PARTIAL leaves out. */
static void test_rk_recording_open_finds_every_cut(void **state)
{
    struct rk_batch *batch = make_batch();
    char *dir = write_recording("cut", batch), *path = calls_path(dir);
    struct stat info;
    int num_whole = 0;

    (void)state;
    assert_int_equal(stat(path, &info), 0);
    for (off_t bytes = info.st_size - 1; bytes >= 0; bytes--) {
        struct rk_recording *recording = NULL;
        struct rk_status *st;

        assert_int_equal(truncate(path, bytes), 0);
        st = rk_recording_open(&recording, dir, 0);
        if (!st) {
            num_whole++;
            assert_null(rk_recording_end_reason(recording));
            rk_recording_close(recording);
            continue;
        }
        assert_int_equal(rk_status_code(st), RK_DATA_LOSS);
        assert_string_equal(rk_status_reason(st), "RECORD_CUT");
        rk_status_free(st);
        if (bytes < 16)
            continue; /* less than the file header */
        assert_ok(rk_recording_open(&recording, dir, RK_RECORDING_PARTIAL));
        assert_null(rk_recording_end_reason(recording));
        rk_recording_close(recording);
    }
    assert_int_equal(num_whole, 3); /* without the end, without the call, with the header only */
    rk_batch_destroy(batch);
    rk_free(path);
    rk_free(dir);
}

static void flip(const char *path, off_t offset)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

/* Goal: no changed bit of calls.rec is accepted. The four reserved bytes of the header are not checked. */
static void test_rk_recording_open_finds_every_changed_byte(void **state)
{
    struct rk_batch *batch = make_batch();
    char *dir = write_recording("changed", batch), *path = calls_path(dir);
    struct stat info;

    (void)state;
    assert_int_equal(stat(path, &info), 0);
    for (off_t offset = 0; offset < info.st_size; offset++) {
        struct rk_recording *recording = NULL;
        struct rk_status *st;

        if (offset >= 12 && offset < 16)
            continue;
        flip(path, offset);
        st = rk_recording_open(&recording, dir, RK_RECORDING_PARTIAL);
        if (!st)
            fail_msg("the change of byte %lld is not found", (long long)offset);
        assert_true(strcmp(rk_status_reason(st), "RECORD_DAMAGED") == 0 ||
                    strcmp(rk_status_reason(st), "RECORD_VERSION") == 0);
        rk_status_free(st);
        flip(path, offset);
    }
    rk_batch_destroy(batch);
    rk_free(path);
    rk_free(dir);
}

/* Goal: the errors name a directory that is not empty, one whose parent does not exist, and one without a
 * recording. */
static void test_rk_recording_folders_that_do_not_fit(void **state)
{
    struct rk_batch *batch = make_batch();
    char *dir = write_recording("taken", batch), *empty = rk_test_temp_path("empty");
    struct rk_json *info = rk_json_new_object();
    struct rk_recording_writer *writer;
    struct rk_recording *recording;

    (void)state;
    assert_fails(rk_recording_writer_open(&writer, dir, info), RK_ALREADY_EXISTS, dir);
    assert_fails(rk_recording_writer_open(&writer, DEAD_DIR, info), RK_INVALID_ARGUMENT, DEAD_DIR);
    assert_int_equal(mkdir(empty, 0700), 0);
    assert_fails(rk_recording_open(&recording, empty, 0), RK_NOT_FOUND, empty);
    rk_json_free(info);
    rk_batch_destroy(batch);
    rk_free(empty);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_recording_open_returns_what_was_put),
        cmocka_unit_test(test_rk_recording_open_finds_every_cut),
        cmocka_unit_test(test_rk_recording_open_finds_every_changed_byte),
        cmocka_unit_test(test_rk_recording_folders_that_do_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
