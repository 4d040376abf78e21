/* Files: reads from positions, positioned writes, and the one way in which rankd
 * publishes a file (temporary name, fsync, rename, fsync of the directory). */
#ifndef RK_FILE_IO_H
#define RK_FILE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_file.h"
#include "base/rk_status.h"

/* As rk_file_read, but from a pipe or device too: configurations, which a shell may make (<(command),
 * /dev/stdin). Waits until the other end of a pipe closes it. */
struct rk_status *rk_file_read_stream(char **out, size_t *bytes, const char *path,
                                      size_t max_bytes) RK_NODISCARD;
/* DATA_LOSS when the file ends before offset + bytes. */
struct rk_status *rk_file_pread(int fd, const char *path, void *dst, size_t bytes,
                                uint64_t offset) RK_NODISCARD;
/* Without it a crash of the machine could undo creations, renames or removals in the directory. */
struct rk_status *rk_file_sync_dir(const char *dir) RK_NODISCARD;

/* A file that does not have its final name yet. */
struct rk_pending_file {
    char *path;
    char *temp_path; /* exists on disk while not NULL */
    int fd;          /* -1 when closed */
    size_t unsynced_bytes;
    /* Checksum of the first summed_bytes, which were written from the beginning to the end. */
    bool sums;
    uint32_t crc32c;
    uint64_t summed_bytes;
};

/* Creates the temporary file next to `path`. `file` is valid for discard on failure too. */
struct rk_status *rk_pending_file_open(struct rk_pending_file *file, const char *path) RK_NODISCARD;
/* Regularly waits until written data is on the disk: so commit waits only briefly, and progress
 * of a writer with a slow disk is visible. */
struct rk_status *rk_pending_file_pwrite(struct rk_pending_file *file, const void *data, size_t bytes,
                                         uint64_t offset) RK_NODISCARD;
struct rk_status *rk_pending_file_truncate(struct rk_pending_file *file, uint64_t bytes) RK_NODISCARD;
struct rk_status *rk_pending_file_commit(struct rk_pending_file *file) RK_NODISCARD;
void rk_pending_file_discard(struct rk_pending_file *file); /* releases; removes what was not committed */

#endif
