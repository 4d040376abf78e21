/* The safetensors format: header check, reading by range, planned writing.
 *
 * Format and the checks of the reference reader: docs/formats.md. Nothing in a file is trusted: sizes are
 * checked with overflow, ranges must cover the data without gaps, duplicates are refused. Errors are
 * DATA_LOSS and name file and tensor; UNIMPLEMENTED for a dtype of the format that rankd lacks and for more
 * than 8 dimensions. */
#ifndef RK_SAFETENSORS_H
#define RK_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_dtype.h"
#include "base/rk_json.h"
#include "base/rk_status.h"

RK_BEGIN_DECLS

#define RK_ST_MAX_RANK 8

struct rk_st_tensor {
    const char *name;
    rk_dtype_t dtype;
    int32_t rank;
    int64_t shape[RK_ST_MAX_RANK];
    uint64_t offset; /* from the start of the file */
    uint64_t bytes;
};

struct rk_st_file;

/* Opens and checks the header. NOT_FOUND, DATA_LOSS (also for a header over 100 MB, and for another kind of
 * file, which the message names), or RESOURCE_EXHAUSTED (over 131072 tensors or over 2 million values). */
struct rk_status *rk_st_open(struct rk_st_file **out, const char *path) RK_NODISCARD;
/* rk_st_open for bytes in memory that begin with the header of a file of file_bytes (fuzzing, batches
 * received as bytes). Reads are refused on such an object. */
struct rk_status *rk_st_parse(struct rk_st_file **out, const void *data, size_t data_bytes,
                              uint64_t file_bytes, const char *source) RK_NODISCARD;
void rk_st_close(struct rk_st_file *file); /* NULL is a no-op */

const char *rk_st_path(const struct rk_st_file *file);
int64_t rk_st_count(const struct rk_st_file *file);
const struct rk_st_tensor *rk_st_at(const struct rk_st_file *file, int64_t i); /* in order of offset */
const struct rk_st_tensor *rk_st_find(const struct rk_st_file *file, const char *name);
/* Object of strings, or NULL when the file has no __metadata__. Borrowed. */
const struct rk_json *rk_st_metadata(const struct rk_st_file *file);
/* Reads [begin, begin + bytes) of the tensor's data. DATA_LOSS when the file has become shorter. */
struct rk_status *rk_st_read(const struct rk_st_file *file, const struct rk_st_tensor *tensor, uint64_t begin,
                             size_t bytes, void *dst) RK_NODISCARD;

/* --- writing: declare all tensors, then write them in any order and in pieces, then commit. The file appears
 * under its name only at commit (temporary file, fsync, rename, fsync of the directory). --- */
struct rk_st_entry {
    const char *name;
    rk_dtype_t dtype;
    int32_t rank;
    int64_t shape[RK_ST_MAX_RANK];
};

struct rk_st_writer;

/* Lays the tensors out in the reference writer's order (dtype descending, then name). `metadata` is an object
 * of strings or NULL; {"format": "pt"} is added when it lacks "format". */
struct rk_status *rk_st_writer_create(struct rk_st_writer **out, const char *path,
                                      const struct rk_st_entry *entries, int64_t num_entries,
                                      const struct rk_json *metadata) RK_NODISCARD;
/* Writes `bytes` at `begin` of entry i (index of `entries`). The pieces of an entry must not overlap. */
struct rk_status *rk_st_writer_write(struct rk_st_writer *writer, int64_t i, uint64_t begin, const void *data,
                                     size_t bytes) RK_NODISCARD;
/* Before the first write: the checksum of the file is computed as it is written. */
void rk_st_writer_sum(struct rk_st_writer *writer);
/* Negative, 0 or positive: the order of two tensors in a file. */
int rk_st_compare(rk_dtype_t dtype, const char *name, rk_dtype_t other_dtype, const char *other_name);
/* Size and CRC-32C of the whole file. False unless all of it was written in the order of the file: entries by
 * dtype descending, then name, and each from its beginning to its end. */
bool rk_st_writer_get_sum(const struct rk_st_writer *writer, uint64_t *file_bytes, uint32_t *crc32c);
/* Publishes the file. FAILED_PRECONDITION when a tensor was not written completely. RESOURCE_EXHAUSTED with
 * reason DISK_FULL when the disk or the file-size limit is exhausted. */
struct rk_status *rk_st_writer_commit(struct rk_st_writer *writer) RK_NODISCARD;
void rk_st_writer_destroy(struct rk_st_writer *writer); /* without commit: removes the temporary file */

RK_END_DECLS

#endif
