#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_crc32c.h"
#include "base/rk_fault.h"
#include "base/rk_file.h"
#include "base/format/rk_safetensors.h"
#include "dispatch/recording_internal.h"

struct rk_recording_writer {
    int fd;
    char *path;
    uint64_t offset, number; /* after the last entry; its number */
    uint32_t crc;            /* of the last entry */
};

const char *rk_recording_kind_name(rk_recording_kind_t kind)
{
    static const char *const names[] = {[RK_RECORDING_LEASE] = "lease",
                                        [RK_RECORDING_CONFIGURE] = "configure",
                                        [RK_RECORDING_CALL] = "call",
                                        [RK_RECORDING_RESULT] = "result",
                                        [RK_RECORDING_END] = "end"};

    RK_ASSERT(kind >= RK_RECORDING_LEASE && kind <= RK_RECORDING_END);
    return names[kind];
}

/* --- entries --- */

struct rk_recording_entry *rk_recording_entry_create(rk_recording_kind_t kind)
{
    struct rk_recording_entry *entry = rk_calloc(1, sizeof(*entry));

    entry->kind = kind;
    entry->meta = rk_json_new_object();
    entry->arena = rk_arena_create(4096, 0);
    return entry;
}

void rk_recording_entry_destroy(struct rk_recording_entry *entry)
{
    if (!entry)
        return;
    rk_json_free(entry->meta);
    rk_str_fini(&entry->message);
    rk_batch_destroy(entry->batch);
    rk_arena_destroy(entry->arena);
    rk_free(entry);
}

struct rk_status *rk_recording_entry_set_batch(struct rk_recording_entry *entry, struct rk_batch_spec *spec,
                                               const struct rk_batch *batch, const char *const *want)
{
    RK_ASSERT(!entry->batch);
    RK_TRY(rk_batch_select(&entry->batch, batch, want, NULL)); /* shares the columns */
    RK_TRY(rk_batch_describe(spec, &entry->columns, entry->arena, entry->batch, NULL));
    entry->num_tensors = spec->num_tensors;
    for (int64_t i = 0; i < entry->num_tensors; i++)
        entry->tensor_bytes += rk_column_bytes(entry->columns[i]);
    return NULL;
}

/* --- the folder --- */

static struct rk_status *errno_status(const char *action, const char *path)
{
    int error = errno;
    bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;

    return RK_FAIL_REASON(is_full ? RK_RESOURCE_EXHAUSTED : RK_INVALID_ARGUMENT, is_full ? "DISK_FULL" : "",
                          "%s '%s': %s", action, path, strerror(error));
}

static bool is_empty_dir(const char *dir)
{
    DIR *opened = opendir(dir);
    struct dirent *entry;
    bool is_empty = opened != NULL;

    while (opened && (entry = readdir(opened)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            is_empty = false;
    }
    if (opened)
        closedir(opened);
    return is_empty;
}

/* Only the last folder of the path may be missing. */
static struct rk_status *make_dir(const char *dir)
{
    if (mkdir(dir, 0700) == 0 || (errno == EEXIST && is_empty_dir(dir)))
        return NULL;
    if (errno == EEXIST)
        return RK_FAIL(RK_ALREADY_EXISTS, "the folder '%s' of the recording is not empty", dir);
    return errno_status("cannot create the folder", dir);
}

uint32_t rk_recording_json_checksum(const struct rk_json *json)
{
    char *text = rk_json_dump(json, 0, true);
    uint32_t crc = rk_crc32c(0, text, strlen(text));

    rk_free(text);
    return crc;
}

static struct rk_status *write_info(const char *dir, const struct rk_json *info)
{
    struct rk_json *json = rk_json_clone(info);
    char *path = rk_path_join(dir, RK_RECORDING_INFO_FILE), *crc, *text;
    struct rk_status *st;

    rk_json_set(json, "format", rk_json_new_string(RK_RECORDING_FORMAT));
    rk_json_set(json, "format_version", rk_json_new_int(RK_RECORDING_FORMAT_VERSION));
    crc = rk_format("%08x", rk_recording_json_checksum(json));
    rk_json_set(json, "checksum", rk_json_new_string(crc));
    text = rk_json_dump(json, 2, true);
    st = rk_write_file_atomic(path, text, strlen(text));
    rk_free(text);
    rk_free(crc);
    rk_free(path);
    rk_json_free(json);
    return st;
}

static struct rk_status *write_all(struct rk_recording_writer *writer, const void *data, size_t bytes,
                                   uint64_t *offset)
{
    const char *rest = data;

    while (bytes > 0) {
        ssize_t done;

        if (RK_FAULT("record.write")) {
            errno = ENOSPC;
            done = -1;
        } else {
            done = pwrite(writer->fd, rest, bytes, (off_t)*offset);
        }
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return errno_status("cannot write", writer->path);
        rest += done;
        bytes -= (size_t)done;
        *offset += (uint64_t)done;
    }
    return NULL;
}

static struct rk_status *open_calls(struct rk_recording_writer *writer, const char *dir)
{
    struct rk_recording_file_head head = {.version = RK_RECORDING_FORMAT_VERSION};

    memcpy(head.magic, RK_RECORDING_FILE_MAGIC, sizeof(head.magic));
    writer->path = rk_path_join(dir, RK_RECORDING_CALLS_FILE);
    writer->fd = open(writer->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (writer->fd < 0)
        return errno_status("cannot create", writer->path);
    return write_all(writer, &head, sizeof(head), &writer->offset);
}

struct rk_status *rk_recording_writer_open(struct rk_recording_writer **out, const char *dir,
                                           const struct rk_json *info)
{
    struct rk_recording_writer *writer;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(make_dir(dir));
    RK_TRY(write_info(dir, info));
    writer = rk_calloc(1, sizeof(*writer));
    writer->fd = -1;
    st = open_calls(writer, dir);
    if (st) {
        rk_recording_writer_close(writer);
        return st;
    }
    *out = writer;
    return NULL;
}

/* --- entries to the file --- */

static struct rk_recording_frame make_frame(const struct rk_recording_writer *writer,
                                            const struct rk_recording_entry *entry, const char *meta)
{
    struct rk_recording_frame frame = {.magic = RK_RECORDING_FRAME_MAGIC,
                                       .kind = (uint32_t)entry->kind,
                                       .number = writer->number + 1,
                                       .meta_bytes = (uint32_t)strlen(meta),
                                       .message_bytes = (uint32_t)entry->message.bytes,
                                       .tensor_bytes = entry->tensor_bytes};

    frame.head_crc32c = rk_crc32c(0, &frame, offsetof(struct rk_recording_frame, head_crc32c));
    frame.crc32c = rk_crc32c(writer->crc, &frame, offsetof(struct rk_recording_frame, crc32c));
    frame.crc32c = rk_crc32c(frame.crc32c, meta, frame.meta_bytes);
    frame.crc32c = rk_crc32c(frame.crc32c, rk_str_text(&entry->message), entry->message.bytes);
    for (int64_t i = 0; i < entry->num_tensors; i++)
        frame.crc32c =
            rk_crc32c(frame.crc32c, rk_column_values(entry->columns[i]), rk_column_bytes(entry->columns[i]));
    return frame;
}

static struct rk_status *write_entry(struct rk_recording_writer *writer,
                                     const struct rk_recording_frame *frame,
                                     const struct rk_recording_entry *entry, const char *meta,
                                     uint64_t *offset)
{
    RK_TRY(write_all(writer, frame, sizeof(*frame), offset));
    RK_TRY(write_all(writer, meta, frame->meta_bytes, offset));
    RK_TRY(write_all(writer, rk_str_text(&entry->message), entry->message.bytes, offset));
    for (int64_t i = 0; i < entry->num_tensors; i++)
        RK_TRY(write_all(writer, rk_column_values(entry->columns[i]), rk_column_bytes(entry->columns[i]),
                         offset));
    return NULL;
}

struct rk_status *rk_recording_writer_put(struct rk_recording_writer *writer,
                                          const struct rk_recording_entry *entry)
{
    char *meta = rk_json_dump(entry->meta, 0, true);
    struct rk_recording_frame frame = make_frame(writer, entry, meta);
    uint64_t offset = writer->offset;
    struct rk_status *st = write_entry(writer, &frame, entry, meta, &offset);

    rk_free(meta);
    if (st) {
        /* Half an entry would make the recording look truncated. */
        if (ftruncate(writer->fd, (off_t)writer->offset) != 0)
            return RK_WRAP(st, "the incomplete entry stays in the file");
        return st;
    }
    writer->offset = offset;
    writer->number = frame.number;
    writer->crc = frame.crc32c;
    return NULL;
}

void rk_recording_writer_close(struct rk_recording_writer *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0)
        close(writer->fd);
    rk_free(writer->path);
    rk_free(writer);
}
