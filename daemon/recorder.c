#include "daemon/recorder_internal.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"
#include "generated/rk_version.h"

/* Limit of tensors that wait for the disk; beyond it the disk is too slow and the recording stops. */
#define QUEUE_BYTES_MAX ((uint64_t)1 << 30)

struct queued {
    struct queued *next;
    struct rk_recording_entry *entry;
};

struct rk_recorder {
    char *dir;
    struct rk_recording_writer *writer; /* R; NULL when it could not be opened */
    pthread_t thread;
    bool has_thread;
    atomic_bool is_stopped;
    pthread_mutex_t lock; /* guards the following fields */
    pthread_cond_t wake;
    struct queued *first, **last;
    uint64_t queued_bytes;
    bool is_ending;
    char reason[512]; /* why it stopped */
};

static void free_queue(struct queued *first)
{
    while (first) {
        struct queued *next = first->next;

        rk_recording_entry_destroy(first->entry);
        rk_free(first);
        first = next;
    }
}

/* Has an effect once: later entries find is_stopped. Any thread. */
static void stop(struct rk_recorder *recorder, const char *reason)
{
    bool was_stopped;

    pthread_mutex_lock(&recorder->lock);
    was_stopped = atomic_load(&recorder->is_stopped);
    if (!was_stopped)
        snprintf(recorder->reason, sizeof(recorder->reason), "%s", reason);
    atomic_store(&recorder->is_stopped, true);
    pthread_mutex_unlock(&recorder->lock);
    if (!was_stopped)
        RK_ERROR("recording stopped, calls continue without it dir=\"%s\" err=\"%s\"", recorder->dir, reason);
}

static void write_end(struct rk_recorder *recorder, const char *reason)
{
    struct rk_recording_entry *entry = rk_recording_entry_create(RK_RECORDING_END);

    rk_json_set(entry->meta, "reason", rk_json_new_string(reason));
    RK_IGNORE(rk_recording_writer_put(recorder->writer, entry), "a record without an end is readable");
    rk_recording_entry_destroy(entry);
}

/* --- R --- */

static void write_entry(struct rk_recorder *recorder, const struct rk_recording_entry *entry)
{
    struct rk_status *st;

    if (atomic_load(&recorder->is_stopped))
        return;
    st = rk_recording_writer_put(recorder->writer, entry);
    if (!st)
        return;
    stop(recorder, rk_status_message(st));
    write_end(recorder, rk_status_message(st));
    rk_status_free(st);
}

/* Takes all queued entries; waits for one, or the end (NULL). */
static struct queued *take_queue(struct rk_recorder *recorder)
{
    struct queued *first;

    pthread_mutex_lock(&recorder->lock);
    while (!recorder->first && !recorder->is_ending)
        pthread_cond_wait(&recorder->wake, &recorder->lock);
    first = recorder->first;
    recorder->first = NULL;
    recorder->last = &recorder->first;
    pthread_mutex_unlock(&recorder->lock);
    return first;
}

static void *run_recorder(void *user)
{
    struct rk_recorder *recorder = user;
    struct queued *first;

    prctl(PR_SET_NAME, "rankd-R");
    while ((first = take_queue(recorder)) != NULL) {
        for (struct queued *queued = first; queued; queued = queued->next) {
            uint64_t bytes = queued->entry->tensor_bytes;

            write_entry(recorder, queued->entry);
            rk_recording_entry_destroy(queued->entry);
            queued->entry = NULL;
            pthread_mutex_lock(&recorder->lock);
            recorder->queued_bytes -= bytes;
            pthread_mutex_unlock(&recorder->lock);
        }
        free_queue(first);
    }
    return NULL;
}

/* --- L --- */

bool rk_recorder_is_on(struct rk_recorder *recorder)
{
    return recorder && !atomic_load(&recorder->is_stopped);
}

void rk_recorder_put(struct rk_recorder *recorder, struct rk_recording_entry *entry)
{
    struct queued *queued;
    bool is_full;

    if (!rk_recorder_is_on(recorder)) {
        rk_recording_entry_destroy(entry);
        return;
    }
    queued = rk_calloc(1, sizeof(*queued));
    queued->entry = entry;
    pthread_mutex_lock(&recorder->lock);
    *recorder->last = queued;
    recorder->last = &queued->next;
    recorder->queued_bytes += entry->tensor_bytes;
    is_full = recorder->queued_bytes > QUEUE_BYTES_MAX;
    pthread_cond_signal(&recorder->wake);
    pthread_mutex_unlock(&recorder->lock);
    if (is_full)
        stop(recorder, "the disk is too slow: more than 1 GiB of tensors wait to be written");
}

const char *rk_recorder_describe(struct rk_recorder *recorder, struct rk_arena *arena)
{
    char *text;
    const char *copy;

    if (!recorder)
        return "";
    pthread_mutex_lock(&recorder->lock);
    text = atomic_load(&recorder->is_stopped) ? rk_format("stopped: %s", recorder->reason)
                                              : rk_format("on: %s", recorder->dir);
    pthread_mutex_unlock(&recorder->lock);
    copy = rk_arena_strdup(arena, text);
    rk_free(text);
    return copy ? copy : "";
}

/* --- life --- */

static struct rk_json *make_info(const struct rk_recorder_config *config)
{
    struct rk_json *info = rk_json_new_object();
    char text[64];

    rk_json_set(info, "version", rk_json_new_string(RK_VERSION));
    rk_json_set(info, "git_commit", rk_json_new_string(RK_GIT_COMMIT));
    rk_json_set(info, "device", rk_json_new_string(config->device));
    rk_json_set(info, "host", rk_json_new_string(config->host));
    rk_json_set(info, "slot", rk_json_new_int(config->slot));
    rk_json_set(info, "cpu_num_threads", rk_json_new_int(config->num_threads));
    snprintf(text, sizeof(text), "%016" PRIx64, config->incarnation);
    rk_json_set(info, "incarnation", rk_json_new_string(text));
    rk_json_set(info, "started",
                rk_json_new_string(rk_time_format_utc(rk_time_unix_ns(), text, sizeof(text))));
    return info;
}

static struct rk_status *open_writer(struct rk_recorder *recorder, const struct rk_recorder_config *config)
{
    struct rk_json *info = make_info(config);
    struct rk_status *st = rk_recording_writer_open(&recorder->writer, config->dir, info);

    recorder->dir = rk_strdup(config->dir);
    if (rk_status_code(st) == RK_ALREADY_EXISTS) {
        rk_status_free(st);
        rk_free(recorder->dir);
        recorder->dir = rk_format("%s/%" PRId64 "-%08x", config->dir, rk_time_unix_ns() / 1000000000,
                                  (unsigned)(config->incarnation & 0xffffffffu));
        st = rk_recording_writer_open(&recorder->writer, recorder->dir, info);
    }
    rk_json_free(info);
    return st;
}

struct rk_status *rk_recorder_create(struct rk_recorder **out, const struct rk_recorder_config *config)
{
    struct rk_recorder *recorder = rk_calloc(1, sizeof(*recorder));
    struct rk_status *st;

    *out = NULL;
    recorder->last = &recorder->first;
    pthread_mutex_init(&recorder->lock, NULL);
    pthread_cond_init(&recorder->wake, NULL);
    atomic_init(&recorder->is_stopped, false);
    st = open_writer(recorder, config);
    if (st && strcmp(rk_status_reason(st), "DISK_FULL") == 0) {
        stop(recorder, rk_status_message(st));
        rk_status_free(st);
        *out = recorder;
        return NULL;
    }
    if (!st)
        st = rk_thread_start(&recorder->thread, run_recorder, recorder, "recorder");
    if (st) {
        rk_recorder_destroy(recorder);
        return RK_WRAP(st, "record.dir");
    }
    recorder->has_thread = true;
    RK_INFO("recording dir=\"%s\"", recorder->dir);
    *out = recorder;
    return NULL;
}

void rk_recorder_destroy(struct rk_recorder *recorder)
{
    if (!recorder)
        return;
    if (recorder->has_thread) {
        pthread_mutex_lock(&recorder->lock);
        recorder->is_ending = true;
        pthread_cond_signal(&recorder->wake);
        pthread_mutex_unlock(&recorder->lock);
        pthread_join(recorder->thread, NULL);
        if (!atomic_load(&recorder->is_stopped))
            write_end(recorder, RK_RECORDING_WHOLE);
    }
    free_queue(recorder->first);
    rk_recording_writer_close(recorder->writer);
    pthread_cond_destroy(&recorder->wake);
    pthread_mutex_destroy(&recorder->lock);
    rk_free(recorder->dir);
    rk_free(recorder);
}
