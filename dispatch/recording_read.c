#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_crc32c.h"
#include "base/rk_file.h"
#include "dispatch/recording_internal.h"
#include "proto/rk_stream.h"

#define INFO_BYTES_MAX (1 << 20)
#define BLOCK_BYTES    (1 << 20) /* of tensors that are only summed */

struct rk_recording {
    char *dir, *path; /* of calls.rec */
    int fd;
    uint64_t file_bytes;
    struct rk_json *info;
    RK_ARRAY(struct rk_recording_item) items; /* meta and message are owned */
    const char *end_reason;                   /* of the last item; NULL: none */
};

static struct rk_status *damaged(const struct rk_recording *record, int64_t number, uint64_t offset,
                                 const char *what)
{
    return RK_FAIL_REASON(RK_DATA_LOSS, "RECORD_DAMAGED", "'%s': entry %" PRId64 " at byte %" PRIu64 ": %s",
                          record->path, number, offset, what);
}

static struct rk_status *cut(const struct rk_recording *record, int64_t number, uint64_t offset)
{
    return RK_FAIL_REASON(RK_DATA_LOSS, "RECORD_CUT",
                          "'%s' is truncated: it ends at byte %" PRIu64 ", in the middle of entry %" PRId64
                          ", which begins at byte %" PRIu64,
                          record->path, record->file_bytes, number, offset);
}

static struct rk_status *version_error(const char *path, int64_t version)
{
    return RK_FAIL_REASON(RK_UNIMPLEMENTED, "RECORD_VERSION",
                          "'%s' has version %" PRId64 " of the record format, this program reads version %d",
                          path, version, RK_RECORDING_FORMAT_VERSION);
}

/* --- record.json --- */

static struct rk_status *check_info(const struct rk_json *json, const char *path)
{
    const char *format = rk_json_as_string(rk_json_find(json, "format"), "");
    const char *checksum = rk_json_as_string(rk_json_find(json, "checksum"), "");
    int64_t version = rk_json_as_int(rk_json_find(json, "format_version"), 0);
    struct rk_json *rest;
    char *expected;
    bool is_equal;

    if (strcmp(format, RK_RECORDING_FORMAT) != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "'%s' has the format \"%s\", expected \"%s\"", path, format,
                       RK_RECORDING_FORMAT);
    if (version != RK_RECORDING_FORMAT_VERSION)
        return version_error(path, version);
    rest = rk_json_clone(json);
    rk_json_remove(rest, "checksum");
    expected = rk_format("%08x", rk_recording_json_checksum(rest));
    is_equal = strcmp(expected, checksum) == 0;
    rk_free(expected);
    rk_json_free(rest);
    if (is_equal)
        return NULL;
    return RK_FAIL_REASON(RK_DATA_LOSS, "RECORD_DAMAGED",
                          "'%s': its checksum does not match its contents: the file was changed", path);
}

static struct rk_status *read_info(struct rk_recording *record)
{
    char *path = rk_path_join(record->dir, RK_RECORDING_INFO_FILE);
    struct rk_status *st = NULL;

    if (access(path, F_OK) != 0)
        st = RK_FAIL(RK_NOT_FOUND, "'%s' is not a recording: it has no readable %s", record->dir,
                     RK_RECORDING_INFO_FILE);
    if (!st)
        st = rk_json_parse_file(&record->info, path, INFO_BYTES_MAX, 0);
    if (!st)
        st = check_info(record->info, path);
    rk_free(path);
    return st;
}

/* --- calls.rec --- */

static struct rk_status *read_at(const struct rk_recording *record, void *dst, size_t bytes, uint64_t offset)
{
    char *rest = dst;

    while (bytes > 0) {
        ssize_t done = pread(record->fd, rest, bytes, (off_t)offset);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return RK_FAIL(RK_DATA_LOSS, "cannot read '%s' at byte %" PRIu64 ": %s", record->path, offset,
                           done < 0 ? strerror(errno) : "unexpected end of file");
        rest += done;
        bytes -= (size_t)done;
        offset += (uint64_t)done;
    }
    return NULL;
}

static struct rk_status *open_calls(struct rk_recording *record)
{
    struct rk_recording_file_head head;
    struct stat info;

    RK_TRY(rk_file_open_read(&record->fd, record->path));
    if (fstat(record->fd, &info) != 0)
        return RK_FAIL(RK_INTERNAL, "cannot read '%s': %s", record->path, strerror(errno));
    record->file_bytes = (uint64_t)info.st_size;
    if (record->file_bytes < sizeof(head))
        return cut(record, 0, 0);
    RK_TRY(read_at(record, &head, sizeof(head), 0));
    if (memcmp(head.magic, RK_RECORDING_FILE_MAGIC, sizeof(head.magic)) != 0)
        return RK_FAIL_REASON(RK_DATA_LOSS, "RECORD_DAMAGED",
                              "'%s' does not begin with the signature of a recording", record->path);
    if (head.version != RK_RECORDING_FORMAT_VERSION)
        return version_error(record->path, head.version);
    return NULL;
}

static struct rk_status *check_frame(const struct rk_recording *record,
                                     const struct rk_recording_frame *frame, int64_t number, uint64_t offset)
{
    if (frame->magic != RK_RECORDING_FRAME_MAGIC ||
        frame->head_crc32c != rk_crc32c(0, frame, offsetof(struct rk_recording_frame, head_crc32c)))
        return damaged(record, number, offset,
                       "the checksum of its frame does not match: the entry was changed");
    if (frame->number != (uint64_t)number)
        return damaged(record, number, offset,
                       "its number is not the expected one: entries are missing or moved");
    if (frame->kind < RK_RECORDING_LEASE || frame->kind > RK_RECORDING_END)
        return damaged(record, number, offset, "its kind is unknown");
    if (frame->meta_bytes > RK_RECORDING_META_BYTES || frame->message_bytes > RK_LIMIT_MESSAGE_BYTES)
        return damaged(record, number, offset, "its message exceeds the limit");
    return NULL;
}

/* Continues the checksum over bytes of the file that are not kept. */
static struct rk_status *sum_range(const struct rk_recording *record, uint32_t *crc, uint64_t offset,
                                   uint64_t bytes)
{
    char *block = rk_malloc((size_t)RK_MIN(bytes, (uint64_t)BLOCK_BYTES));
    struct rk_status *st = NULL;

    while (bytes > 0 && !st) {
        size_t part = (size_t)RK_MIN(bytes, (uint64_t)BLOCK_BYTES);

        st = read_at(record, block, part, offset);
        if (!st)
            *crc = rk_crc32c(*crc, block, part);
        offset += part;
        bytes -= part;
    }
    rk_free(block);
    return st;
}

/* Reads meta and message of the item into one allocation, and checks the whole entry. */
static struct rk_status *read_body(struct rk_recording *record, const struct rk_recording_frame *frame,
                                   uint64_t offset, uint32_t *crc)
{
    struct rk_recording_item item = {.kind = (rk_recording_kind_t)frame->kind,
                                     .number = (int64_t)frame->number,
                                     .message_bytes = frame->message_bytes,
                                     .tensor_bytes = frame->tensor_bytes};
    size_t bytes = (size_t)frame->meta_bytes + frame->message_bytes;
    uint64_t begin = offset + sizeof(*frame);
    char *text = rk_malloc(bytes + 1), *message;
    struct rk_json *meta = NULL;
    struct rk_status *st;

    item.tensor_offset = begin + bytes;
    RK_TRY_GOTO(st, read_at(record, text, bytes, begin), out);
    *crc = rk_crc32c(*crc, frame, offsetof(struct rk_recording_frame, crc32c));
    *crc = rk_crc32c(*crc, text, bytes);
    RK_TRY_GOTO(st, sum_range(record, crc, item.tensor_offset, item.tensor_bytes), out);
    if (*crc != frame->crc32c)
        RK_TRY_GOTO(st,
                    damaged(record, item.number, offset,
                            "its checksum does not match: this entry, or one before it, was changed"),
                    out);
    RK_TRY_GOTO(st, rk_json_parse(&meta, text, frame->meta_bytes, record->path, 0), out);
    message = rk_malloc(frame->message_bytes + 1u);
    memcpy(message, text + frame->meta_bytes, frame->message_bytes);
    item.meta = meta;
    item.message = message;
    rk_array_append(&record->items, item);
out:
    rk_free(text);
    return st;
}

/* The entry at *offset; *offset moves past it. */
static struct rk_status *read_entry(struct rk_recording *record, uint64_t *offset, uint32_t *crc)
{
    int64_t number = record->items.count + 1;
    uint64_t left = record->file_bytes - *offset;
    struct rk_recording_frame frame;
    uint64_t bytes;

    if (left < sizeof(frame))
        return cut(record, number, *offset);
    RK_TRY(read_at(record, &frame, sizeof(frame), *offset));
    RK_TRY(check_frame(record, &frame, number, *offset));
    bytes = sizeof(frame) + (uint64_t)frame.meta_bytes + frame.message_bytes;
    if (bytes > left || frame.tensor_bytes > left - bytes)
        return cut(record, number, *offset);
    RK_TRY(read_body(record, &frame, *offset, crc));
    *offset += bytes + frame.tensor_bytes;
    return NULL;
}

static struct rk_status *read_entries(struct rk_recording *record, uint32_t flags)
{
    uint64_t offset = sizeof(struct rk_recording_file_head);
    uint32_t crc = 0;

    while (offset < record->file_bytes) {
        struct rk_status *st;

        if (record->end_reason)
            return damaged(record, record->items.count + 1, offset, "it follows the entry 'end'");
        st = read_entry(record, &offset, &crc);
        if (st && (flags & RK_RECORDING_PARTIAL) && strcmp(rk_status_reason(st), "RECORD_CUT") == 0) {
            RK_IGNORE(st, "RK_RECORDING_PARTIAL: the entries before it are complete");
            return NULL;
        }
        RK_TRY(st);
        if (record->items.items[record->items.count - 1].kind == RK_RECORDING_END)
            record->end_reason = rk_json_as_string(
                rk_json_find(record->items.items[record->items.count - 1].meta, "reason"), "");
    }
    return NULL;
}

struct rk_status *rk_recording_open(struct rk_recording **out, const char *dir, uint32_t flags)
{
    struct rk_recording *record = rk_calloc(1, sizeof(*record));
    struct rk_status *st;

    *out = NULL;
    record->fd = -1;
    record->dir = rk_strdup(dir);
    record->path = rk_path_join(dir, RK_RECORDING_CALLS_FILE);
    st = read_info(record);
    if (!st)
        st = open_calls(record);
    if (!st)
        st = read_entries(record, flags);
    if (st) {
        rk_recording_close(record);
        return st;
    }
    *out = record;
    return NULL;
}

void rk_recording_close(struct rk_recording *record)
{
    if (!record)
        return;
    for (int64_t i = 0; i < record->items.count; i++) {
        rk_json_free(record->items.items[i].meta);
        rk_free(record->items.items[i].message);
    }
    rk_array_fini(&record->items);
    if (record->fd >= 0)
        close(record->fd);
    rk_json_free(record->info);
    rk_free(record->path);
    rk_free(record->dir);
    rk_free(record);
}

const char *rk_recording_dir(const struct rk_recording *record)
{
    return record->dir;
}

const struct rk_json *rk_recording_info(const struct rk_recording *record)
{
    return record->info;
}

int64_t rk_recording_num_items(const struct rk_recording *record)
{
    return record->items.count;
}

const struct rk_recording_item *rk_recording_item_at(const struct rk_recording *record, int64_t i)
{
    RK_ASSERT(i >= 0 && i < record->items.count);
    return &record->items.items[i];
}

const char *rk_recording_end_reason(const struct rk_recording *record)
{
    return record->end_reason;
}

struct rk_status *rk_recording_read_batch(struct rk_batch **out, const struct rk_recording *record,
                                          const struct rk_recording_item *item,
                                          const struct rk_batch_spec *spec)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_assembler *assembler = NULL;
    struct rk_batch *batch = NULL;
    uint64_t offset = item->tensor_offset;
    struct rk_status *st;
    void **data;

    *out = NULL;
    RK_TRY_GOTO(st, rk_assembler_create(&assembler, spec, 0), out); /* checks the sizes */
    if (rk_assembler_total_bytes(assembler) != item->tensor_bytes)
        RK_TRY_GOTO(st,
                    damaged(record, item->number, item->tensor_offset,
                            "the size of its tensors does not match its message"),
                    out);
    RK_TRY_GOTO(st, rk_batch_from_spec(&batch, &data, arena, spec), out);
    for (int64_t i = 0; i < spec->num_tensors && !st; i++) {
        st = read_at(record, data[i], (size_t)spec->tensors[i].byte_size, offset);
        offset += spec->tensors[i].byte_size;
    }
    if (!st) {
        *out = batch;
        batch = NULL;
    }
out:
    rk_batch_destroy(batch);
    rk_assembler_destroy(assembler);
    rk_arena_destroy(arena);
    return st;
}
