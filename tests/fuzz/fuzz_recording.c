/* Goal: no directory of a recording makes `rankctl replay` crash, read beyond the files or use a damaged
 * entry: it is rejected with a reason, or its entries are ordered, their inputs read and their results
 * compared.
 *
 * The input is up to two directories: a byte of flags, the bytes of record.json as u16, the bytes of the
 * first calls.rec as u32, record.json (of both), the first calls.rec, the second (none: one directory).
 * Checksums would reject nearly all mutations, so with REPAIR they are corrected first. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_crc32c.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "dispatch/recording_internal.h"
#include "cmd/replay/replay.h"

#define FOLDERS    2
#define HEAD_BYTES 7

enum { REPAIR = 1, PARTIAL = 2 };

static char folders[FOLDERS][256];

static void remove_folders(void)
{
    for (int i = 0; i < FOLDERS; i++) {
        char *info = rk_path_join(folders[i], RK_RECORDING_INFO_FILE);
        char *calls = rk_path_join(folders[i], RK_RECORDING_CALLS_FILE);

        unlink(info);
        unlink(calls);
        rmdir(folders[i]);
        rk_free(calls);
        rk_free(info);
    }
}

static void make_folders(void)
{
    const char *temp = rk_env("TMPDIR");

    if (folders[0][0])
        return;
    if (!temp)
        temp = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; /* in memory if possible */
    for (int i = 0; i < FOLDERS; i++) {
        snprintf(folders[i], sizeof(folders[i]), "%s/rankd_fuzz_recording_XXXXXX", temp);
        RK_ASSERT(mkdtemp(folders[i]) != NULL);
    }
    atexit(remove_folders);
}

static void write_file(const char *folder, const char *name, const void *data, size_t bytes)
{
    char *path = rk_path_join(folder, name);
    FILE *file = fopen(path, "wbe");

    RK_ASSERT(file != NULL);
    RK_ASSERT(fwrite(data, 1, bytes, file) == bytes);
    RK_ASSERT(fclose(file) == 0);
    rk_free(path);
}

/* --- checksums --- */

static void repair_info(struct rk_str *out, const uint8_t *data, size_t bytes)
{
    struct rk_json *json = NULL;
    struct rk_status *st = rk_json_parse(&json, (const char *)data, bytes, "fuzz", 0);
    char *checksum, *dumped;

    if (st || rk_json_type(json) != RK_JSON_OBJECT) {
        rk_str_append_bytes(out, (const char *)data, bytes);
    } else {
        rk_json_set(json, "format", rk_json_new_string(RK_RECORDING_FORMAT));
        rk_json_set(json, "format_version", rk_json_new_int(RK_RECORDING_FORMAT_VERSION));
        rk_json_remove(json, "checksum");
        checksum = rk_format("%08x", rk_recording_json_checksum(json));
        rk_json_set(json, "checksum", rk_json_new_string(checksum));
        rk_free(checksum);
        dumped = rk_json_dump(json, 0, false);
        rk_str_append(out, dumped);
        rk_free(dumped);
    }
    rk_status_free(st);
    rk_json_free(json);
}

/* Frames keep their kinds and sizes; stops at a frame longer than the rest. */
static void repair_calls(uint8_t *data, size_t bytes)
{
    struct rk_recording_file_head head = {.version = RK_RECORDING_FORMAT_VERSION};
    struct rk_recording_frame frame;
    size_t at = sizeof(head);
    uint32_t crc = 0;

    if (bytes < sizeof(head))
        return;
    memcpy(head.magic, RK_RECORDING_FILE_MAGIC, sizeof(head.magic));
    memcpy(data, &head, sizeof(head));
    for (uint64_t number = 1; bytes - at >= sizeof(frame); number++) {
        uint64_t body;

        memcpy(&frame, data + at, sizeof(frame));
        frame.magic = RK_RECORDING_FRAME_MAGIC;
        frame.number = number;
        frame.head_crc32c = rk_crc32c(0, &frame, offsetof(struct rk_recording_frame, head_crc32c));
        body = (uint64_t)frame.meta_bytes + frame.message_bytes;
        if (body > bytes || frame.tensor_bytes > bytes ||
            body + frame.tensor_bytes > bytes - at - sizeof(frame)) {
            memcpy(data + at, &frame, sizeof(frame));
            return;
        }
        body += frame.tensor_bytes;
        crc = rk_crc32c(crc, &frame, offsetof(struct rk_recording_frame, crc32c));
        crc = rk_crc32c(crc, data + at + sizeof(frame), (size_t)body);
        frame.crc32c = crc;
        memcpy(data + at, &frame, sizeof(frame));
        at += sizeof(frame) + (size_t)body;
    }
}

static void write_folder(int i, int flags, const uint8_t *info, size_t info_bytes, const uint8_t *calls,
                         size_t calls_bytes)
{
    struct rk_str text = {0};
    uint8_t *copy = rk_malloc(calls_bytes + 1);

    memcpy(copy, calls, calls_bytes);
    if (flags & REPAIR) {
        repair_info(&text, info, info_bytes);
        repair_calls(copy, calls_bytes);
    } else {
        rk_str_append_bytes(&text, (const char *)info, info_bytes);
    }
    write_file(folders[i], RK_RECORDING_INFO_FILE, rk_str_text(&text), text.bytes);
    write_file(folders[i], RK_RECORDING_CALLS_FILE, copy, calls_bytes);
    rk_str_fini(&text);
    rk_free(copy);
}

/* --- like replay --- */

static void read_call(const struct rk_recording *recording, const struct rk_recording_item *item)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_execute_request request;
    struct rk_batch *batch = NULL;
    struct rk_status *st;

    st = rk_unpack_execute_request(&request, arena, item->message, item->message_bytes);
    if (!st && request.kind == RK_EXECUTE_HEADER)
        st = rk_recording_read_batch(&batch, recording, item, &request.header.input);
    rk_status_free(st);
    rk_batch_destroy(batch);
    rk_arena_destroy(arena);
}

/* A result compared with itself: only NaN values differ. */
static void compare_result(const struct rk_recording *recording, const struct rk_recording_item *item)
{
    static const struct rk_replay_tolerance exact = {.abs = 0};
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_replay_differences differences = {.items = {0}};
    struct rk_execute_response response;
    struct rk_batch *batch = NULL;
    struct rk_status *st;

    st = rk_unpack_execute_response(&response, arena, item->message, item->message_bytes);
    if (!st && response.kind == RK_RESPONSE_RESULT) {
        st = rk_recording_read_batch(&batch, recording, item, &response.result.output);
        if (!st)
            st = rk_replay_compare(&differences, 0, recording, item, &response.result, batch, &exact);
        if (!st) {
            for (int64_t i = 0; i < differences.items.count; i++)
                RK_ASSERT(differences.items.items[i].kind == RK_DIFFERENCE_METRIC);
        }
    }
    rk_status_free(st);
    rk_array_fini(&differences.items);
    rk_batch_destroy(batch);
    rk_arena_destroy(arena);
}

static void check_step(const struct rk_replay_order *order, const struct rk_replay_step *step)
{
    for (int32_t rank = 0; rank < order->num_ranks; rank++) {
        if (!step->items[rank])
            continue;
        RK_ASSERT(step->items[rank]->kind == step->kind);
        if (step->kind == RK_RECORDING_CALL)
            read_call(order->recordings[rank], step->items[rank]);
        if (step->results[rank])
            compare_result(order->recordings[rank], step->results[rank]);
    }
}

static void check_order(struct rk_recording **recordings, int32_t count)
{
    struct rk_replay_order order;
    struct rk_status *st = rk_replay_order_make(&order, recordings, count);

    RK_ASSERT(!st || order.num_ranks == 0);
    if (!st)
        RK_ASSERT(order.num_ranks == count);
    for (int64_t i = 0; i < order.steps.count; i++)
        check_step(&order, &order.steps.items[i]);
    rk_replay_order_fini(&order);
    rk_status_free(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct rk_recording *recordings[FOLDERS] = {NULL};
    const uint8_t *info = data + HEAD_BYTES;
    size_t info_bytes, first_bytes;
    struct rk_status *st;
    int32_t count = 0;
    int num_folders;

    if (bytes < HEAD_BYTES)
        return 0;
    make_folders();
    bytes -= HEAD_BYTES;
    info_bytes = RK_MIN(bytes, (size_t)data[1] | (size_t)data[2] << 8);
    bytes -= info_bytes;
    first_bytes = RK_MIN(bytes, (size_t)data[3] | (size_t)data[4] << 8 | (size_t)data[5] << 16);
    num_folders = first_bytes < bytes ? 2 : 1;
    for (int i = 0; i < num_folders; i++) {
        write_folder(i, data[0], info, info_bytes, info + info_bytes + (i == 0 ? 0 : first_bytes),
                     i == 0 ? first_bytes : bytes - first_bytes);
        st = rk_recording_open(&recordings[i], folders[i],
                               data[0] & PARTIAL ? (uint32_t)RK_RECORDING_PARTIAL : 0);
        RK_ASSERT(!st == (recordings[i] != NULL));
        if (!st)
            recordings[count++] = recordings[i];
        rk_status_free(st);
    }
    if (count > 0)
        check_order(recordings, count);
    for (int32_t i = 0; i < count; i++)
        rk_recording_close(recordings[i]);
    return 0;
}
