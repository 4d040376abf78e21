/* Records the calls and results of this daemon (dispatch/rk_recording.h, docs/record.md).
 *
 * L adds entries, which share the columns of the calls, and thread R writes them: a call never waits for
 * the disk, and never fails because of it. When the disk is full or too slow, recording stops with one line
 * in the log, status says so, and the daemon continues. */
#ifndef RK_RECORDER_INTERNAL_H
#define RK_RECORDER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"
#include "dispatch/rk_recording.h"

struct rk_daemon;
struct rk_job;
struct rk_job_configure;
struct rk_operation;
struct rk_recorder;

struct rk_recorder_config {
    const char *dir; /* used itself if missing or empty; else a new subfolder is created */
    const char *device, *host;
    int32_t slot, num_threads; /* of the CPU kernels */
    uint64_t incarnation;
};

/* INVALID_ARGUMENT or another code when the folder cannot be used. A full disk is not an error: the recorder
 * is then stopped from the beginning. */
struct rk_status *rk_recorder_create(struct rk_recorder **out,
                                     const struct rk_recorder_config *config) RK_NODISCARD;
/* Writes the queued entries, and the end. NULL is a no-op. */
void rk_recorder_destroy(struct rk_recorder *recorder);
/* Any thread. False without a recorder, and once it has stopped. */
bool rk_recorder_is_on(struct rk_recorder *recorder);
/* Takes the entry. */
void rk_recorder_put(struct rk_recorder *recorder, struct rk_recording_entry *entry);
/* "" without a recorder, "on: DIR", or "stopped: WHY". In the arena. */
const char *rk_recorder_describe(struct rk_recorder *recorder, struct rk_arena *arena);

/* --- entries of L (record_calls.c); each is a no-op without a recording --- */
void rk_record_lease(struct rk_daemon *daemon);
/* A Configure job that succeeded, before its meshes are taken. */
void rk_record_configure(struct rk_daemon *daemon, const struct rk_job_configure *job);
/* At Commit, before the worker has the job. */
void rk_record_call(struct rk_operation *operation);
/* When the job has returned, before its request part is freed. */
void rk_record_result(struct rk_operation *operation, const struct rk_job *job);

#endif
