/* A recording: the calls and results of one daemon, in a folder that can be copied and
 * replayed (docs/formats.md describes the layout, docs/record.md the use).
 *
 *   DIR/record.json   description of the writer, with a checksum
 *   DIR/calls.rec     the entries in their order, each checksummed together with all before it
 *
 * The writer belongs to one thread at a time. A recording that is open for reading keeps everything except
 * the tensors in memory. */
#ifndef RK_RECORDING_H
#define RK_RECORDING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "base/rk_json.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "dispatch/rk_batch.h"

RK_BEGIN_DECLS

#define RK_RECORDING_FORMAT         "rankd.record"
#define RK_RECORDING_FORMAT_VERSION 1
#define RK_RECORDING_INFO_FILE      "record.json"
#define RK_RECORDING_CALLS_FILE     "calls.rec"

/* Reason of the end of a complete recording. */
#define RK_RECORDING_WHOLE "the daemon stopped"

/* Numbers of the format: never reused. */
typedef enum rk_recording_kind {
    RK_RECORDING_LEASE = 1,     /* meta: epoch, driver_id */
    RK_RECORDING_CONFIGURE = 2, /* message: ConfigureRequest without fence, comm_id and peers; meta: epoch */
    RK_RECORDING_CALL = 3,   /* message: ExecuteRequest with the header, without fence; tensors of the input;
                             meta: request_id, epoch, seq */
    RK_RECORDING_RESULT = 4, /* message: ExecuteResponse with the result; tensors of the output; meta:
                             request_id, code, reason, message */
    RK_RECORDING_END = 5     /* meta: reason. The last entry */
} rk_recording_kind_t;
const char *rk_recording_kind_name(rk_recording_kind_t kind); /* "call" */

/* An entry to be written. */
struct rk_recording_entry {
    rk_recording_kind_t kind;
    struct rk_json *meta;   /* owned; an object */
    struct rk_str message;  /* owned */
    struct rk_batch *batch; /* owned: keeps the columns; NULL without tensors */
    struct rk_arena *arena; /* owned */
    int64_t num_tensors;
    const struct rk_column **columns; /* [num_tensors], in the arena: their bytes, in this order */
    uint64_t tensor_bytes;
};

struct rk_recording_entry *rk_recording_entry_create(rk_recording_kind_t kind);
void rk_recording_entry_destroy(struct rk_recording_entry *entry); /* NULL is a no-op */
/* Keeps the columns of the batch that `want` names (NULL: all), and describes them for the entry's message:
 * `spec` borrows from the entry. */
struct rk_status *rk_recording_entry_set_batch(struct rk_recording_entry *entry, struct rk_batch_spec *spec,
                                               const struct rk_batch *batch,
                                               const char *const *want) RK_NODISCARD;

/* --- writing --- */
struct rk_recording_writer;

/* Creates the folder, which must be missing or empty, for its owner only, and both files. `info` (an object)
 * becomes a part of record.json. */
struct rk_status *rk_recording_writer_open(struct rk_recording_writer **out, const char *dir,
                                           const struct rk_json *info) RK_NODISCARD;
/* RESOURCE_EXHAUSTED (DISK_FULL) when the disk is full: the file then ends after the previous entry. */
struct rk_status *rk_recording_writer_put(struct rk_recording_writer *writer,
                                          const struct rk_recording_entry *entry) RK_NODISCARD;
/* NULL is a no-op. */
void rk_recording_writer_close(struct rk_recording_writer *writer);

/* --- reading --- */
struct rk_recording;

enum rk_recording_open_flags {
    RK_RECORDING_PARTIAL = 1u << 0, /* skip a truncated entry, and all after it */
};

/* One entry of an open recording; borrowed from it. */
struct rk_recording_item {
    rk_recording_kind_t kind;
    int64_t number;       /* from 1 */
    struct rk_json *meta; /* not to be changed */
    char *message;
    size_t message_bytes;
    uint64_t tensor_offset, tensor_bytes; /* in calls.rec */
};

/* Reads and checks the whole folder. NOT_FOUND for a folder that is not a recording; UNIMPLEMENTED
 * (RECORD_VERSION) for another version of the format; DATA_LOSS (RECORD_CUT) for a recording that ends in the
 * middle of an entry, (RECORD_DAMAGED) for one that was changed. The message names file, entry and offset. */
struct rk_status *rk_recording_open(struct rk_recording **out, const char *dir, uint32_t flags) RK_NODISCARD;
void rk_recording_close(struct rk_recording *record); /* NULL is a no-op */
const char *rk_recording_dir(const struct rk_recording *record);
const struct rk_json *rk_recording_info(const struct rk_recording *record);
int64_t rk_recording_num_items(const struct rk_recording *record);
const struct rk_recording_item *rk_recording_item_at(const struct rk_recording *record, int64_t i);
/* The reason of the recording's end, from its last entry; NULL when it has none: the daemon was killed. */
const char *rk_recording_end_reason(const struct rk_recording *record);
/* The tensors of an entry as a batch of that description, which came with the entry's message. DATA_LOSS when
 * the bytes do not match the description. */
struct rk_status *rk_recording_read_batch(struct rk_batch **out, const struct rk_recording *record,
                                          const struct rk_recording_item *item,
                                          const struct rk_batch_spec *spec) RK_NODISCARD;

RK_END_DECLS

#endif
