/* The rings are arrays of atomic words, so that readers on other threads and in signal handlers read complete
 * words and no lock is needed. The first word of an entry is its stamp: 2n + 1 while entry n is being
 * written, 2n + 2 when it is complete; a reader that finds a changed stamp drops the entry. */
#include "base/rk_flight.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_status.h"
#include "base/rk_time.h"

#define PATH_BYTES 1001
/* of rk_flight_group; the tag has the rest */
#define GROUP_FIRST_BITS  12
#define GROUP_STRIDE_BITS 12
#define GROUP_SIZE_BITS   13
#define WAIT_MS           5000 /* of a second thread that dies while the first one writes */

/* An entry for reading and writing; it has the words of the ring. */
struct record {
    uint64_t kind;
    int64_t begin_ns, end_ns; /* end_ns 0: has not ended */
    uint64_t seq, bytes, code, group;
    char what[RK_FLIGHT_WHAT_BYTES], where[RK_FLIGHT_WHERE_BYTES];
};
#define RECORD_WORDS (sizeof(struct record) / sizeof(uint64_t))
#define END_WORD     (offsetof(struct record, end_ns) / sizeof(uint64_t))
#define CODE_WORD    (offsetof(struct record, code) / sizeof(uint64_t))
_Static_assert(sizeof(struct record) % sizeof(uint64_t) == 0, "whole words");

struct slot {
    _Atomic uint64_t stamp;
    _Atomic uint64_t words[RECORD_WORDS];
};

struct ring {
    struct slot *slots;
    uint64_t num_slots;
    _Atomic uint64_t next;
};

static struct slot call_slots[RK_FLIGHT_CALLS], work_slots[RK_FLIGHT_WORK];
static struct ring rings[2] = {{.slots = call_slots, .num_slots = RK_FLIGHT_CALLS},
                               {.slots = work_slots, .num_slots = RK_FLIGHT_WORK}};

static const struct {
    const char *name;
    int ring;
} kinds[RK_FLIGHT_KIND_COUNT] = {
    [RK_FLIGHT_CALL] = {"call", 0},   [RK_FLIGHT_STATE] = {"state", 0},
    [RK_FLIGHT_LEASE] = {"lease", 0}, [RK_FLIGHT_ERROR] = {"error", 0},
    [RK_FLIGHT_PHASE] = {"phase", 1}, [RK_FLIGHT_COLLECTIVE] = {"collective", 1},
};

/* --- in --- */

static void copy_text(char *out, size_t bytes, const char *text)
{
    size_t length = text ? strnlen(text, bytes - 1) : 0;

    memset(out, 0, bytes);
    if (length > 0)
        memcpy(out, text, length);
}

/* Token: ring in the lowest bit. */
static uint64_t put(const struct rk_flight_entry *entry, bool has_ended, int code)
{
    struct ring *ring = &rings[kinds[entry->kind].ring];
    uint64_t number = atomic_fetch_add_explicit(&ring->next, 1, memory_order_relaxed);
    struct slot *slot = &ring->slots[number % ring->num_slots];
    int64_t now_ns = rk_time_now_ns();
    struct record record = {.kind = (uint64_t)entry->kind,
                            .begin_ns = now_ns,
                            .end_ns = has_ended ? now_ns : 0,
                            .seq = entry->seq,
                            .bytes = entry->bytes,
                            .group = entry->group,
                            .code = (uint64_t)code};
    uint64_t words[RECORD_WORDS];

    copy_text(record.what, sizeof(record.what), entry->what);
    copy_text(record.where, sizeof(record.where), entry->where);
    memcpy(words, &record, sizeof(words));
    atomic_store_explicit(&slot->stamp, 2 * number + 1, memory_order_relaxed);
    for (size_t i = 0; i < RECORD_WORDS; i++) /* a reader of one of these words also reads the stamp */
        atomic_store_explicit(&slot->words[i], words[i], memory_order_release);
    atomic_store_explicit(&slot->stamp, 2 * number + 2, memory_order_release);
    return number << 1 | (uint64_t)kinds[entry->kind].ring;
}

uint64_t rk_flight_group(uint32_t tag, int32_t first, int32_t stride, int32_t size)
{
    RK_ASSERT(first >= 0 && first < 1 << GROUP_FIRST_BITS);
    RK_ASSERT(stride >= 0 && stride < 1 << GROUP_STRIDE_BITS);
    RK_ASSERT(size > 0 && size < 1 << GROUP_SIZE_BITS);
    return (((uint64_t)tag << GROUP_FIRST_BITS | (uint64_t)first) << GROUP_STRIDE_BITS | (uint64_t)stride)
               << GROUP_SIZE_BITS |
           (uint64_t)size;
}

uint64_t rk_flight_begin(const struct rk_flight_entry *entry)
{
    RK_ASSERT(entry->kind < RK_FLIGHT_KIND_COUNT);
    return put(entry, false, 0);
}

void rk_flight_note(const struct rk_flight_entry *entry, int code)
{
    RK_ASSERT(entry->kind < RK_FLIGHT_KIND_COUNT);
    put(entry, true, code);
}

void rk_flight_end(uint64_t token, int code)
{
    struct ring *ring = &rings[token & 1];
    uint64_t number = token >> 1;
    struct slot *slot = &ring->slots[number % ring->num_slots];

    if (atomic_load_explicit(&slot->stamp, memory_order_acquire) != 2 * number + 2)
        return;
    atomic_store_explicit(&slot->words[CODE_WORD], (uint64_t)code, memory_order_relaxed);
    atomic_store_explicit(&slot->words[END_WORD], (uint64_t)rk_time_now_ns(), memory_order_relaxed);
}

uint64_t rk_flight_count(void)
{
    return atomic_load(&rings[0].next) + atomic_load(&rings[1].next);
}

void rk_flight_clear(void)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(rings); i++) {
        atomic_store(&rings[i].next, 0);
        for (uint64_t j = 0; j < rings[i].num_slots; j++)
            atomic_store(&rings[i].slots[j].stamp, 0);
    }
}

/* --- writing the file: no stdio, no allocation, no lock --- */

struct writer {
    rk_flight_sink_t sink;
    void *user;
    size_t bytes;
    char buffer[2048];
};

static void flush(struct writer *writer)
{
    if (writer->bytes > 0)
        writer->sink(writer->user, writer->buffer, writer->bytes);
    writer->bytes = 0;
}

static void write_char(struct writer *writer, char c)
{
    if (writer->bytes == sizeof(writer->buffer))
        flush(writer);
    writer->buffer[writer->bytes++] = c;
}

static void write_text(struct writer *writer, const char *text)
{
    for (; *text; text++)
        write_char(writer, *text);
}

static void write_number(struct writer *writer, uint64_t value)
{
    char digits[20];
    int count = 0;

    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    while (count > 0)
        write_char(writer, digits[--count]);
}

/* Quotes and backslashes are escaped; control characters and non-ASCII bytes become '?'. */
static void write_string(struct writer *writer, const char *text)
{
    write_char(writer, '"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            write_char(writer, '\\');
        write_char(writer, *text >= 0x20 && *text < 0x7f ? *text : '?');
    }
    write_char(writer, '"');
}

/* Takes the lowest bits out of *value. */
static void write_bits(struct writer *writer, const char *name, uint64_t *value, int bits)
{
    write_text(writer, name);
    write_number(writer, *value & ((UINT64_C(1) << bits) - 1));
    *value >>= bits;
}

static void write_group(struct writer *writer, uint64_t group)
{
    write_bits(writer, ",\"group\":{\"size\":", &group, GROUP_SIZE_BITS);
    write_bits(writer, ",\"stride\":", &group, GROUP_STRIDE_BITS);
    write_bits(writer, ",\"first\":", &group, GROUP_FIRST_BITS);
    write_text(writer, ",\"tag\":");
    write_number(writer, group);
    write_char(writer, '}');
}

static void write_record(struct writer *writer, const struct record *record)
{
    write_text(writer, "{\"kind\":\"");
    write_text(writer, kinds[record->kind].name);
    write_text(writer, "\",\"what\":");
    write_string(writer, record->what);
    write_text(writer, ",\"where\":");
    write_string(writer, record->where);
    write_text(writer, ",\"seq\":");
    write_number(writer, record->seq);
    write_text(writer, ",\"bytes\":");
    write_number(writer, record->bytes);
    if (record->group != 0)
        write_group(writer, record->group);
    write_text(writer, ",\"begin_ns\":");
    write_number(writer, (uint64_t)record->begin_ns);
    write_text(writer, ",\"end_ns\":");
    if (record->end_ns == 0)
        write_text(writer, "null");
    else
        write_number(writer, (uint64_t)record->end_ns);
    write_text(writer, ",\"code\":");
    write_string(writer, rk_code_name((rk_code_t)record->code));
    write_char(writer, '}');
}

/* Entry `number`; false when the ring has moved on or it is being written. */
static bool read_record(const struct ring *ring, uint64_t number, struct record *out)
{
    const struct slot *slot = &ring->slots[number % ring->num_slots];
    uint64_t words[RECORD_WORDS];

    if (atomic_load_explicit(&slot->stamp, memory_order_acquire) != 2 * number + 2)
        return false;
    for (size_t i = 0; i < RECORD_WORDS; i++)
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
    if (atomic_load_explicit(&slot->stamp, memory_order_relaxed) != 2 * number + 2)
        return false;
    memcpy(out, words, sizeof(*out));
    return true;
}

struct cursor {
    const struct ring *ring;
    uint64_t number, end;
    bool is_read;
    struct record record;
};

/* Reads the next complete entry. */
static bool peek(struct cursor *cursor)
{
    while (!cursor->is_read && cursor->number < cursor->end)
        cursor->is_read = read_record(cursor->ring, cursor->number++, &cursor->record);
    return cursor->is_read;
}

static void write_operations(struct writer *writer)
{
    struct cursor cursors[RK_ARRAY_LEN(rings)];
    bool is_first = true;

    for (size_t i = 0; i < RK_ARRAY_LEN(rings); i++) {
        uint64_t end = atomic_load(&rings[i].next);

        cursors[i].ring = &rings[i];
        cursors[i].end = end;
        cursors[i].number = end > rings[i].num_slots ? end - rings[i].num_slots : 0;
        cursors[i].is_read = false;
    }
    for (;;) {
        struct cursor *first = NULL;

        for (size_t i = 0; i < RK_ARRAY_LEN(rings); i++) {
            if (peek(&cursors[i]) && (!first || cursors[i].record.begin_ns < first->record.begin_ns))
                first = &cursors[i];
        }
        if (!first)
            return;
        write_text(writer, is_first ? "\n" : ",\n");
        is_first = false;
        write_record(writer, &first->record);
        first->is_read = false;
    }
}

void rk_flight_write(rk_flight_sink_t sink, void *user, const char *reason)
{
    struct writer writer;
    struct timespec now;

    writer.sink = sink;
    writer.user = user;
    writer.bytes = 0;
    write_text(&writer, "{\"reason\":");
    write_string(&writer, reason);
    write_text(&writer, ",\"pid\":");
    write_number(&writer, (uint64_t)getpid());
    write_text(&writer, ",\"monotonic_ns\":");
    write_number(&writer, (uint64_t)rk_time_now_ns());
    clock_gettime(CLOCK_REALTIME, &now);
    write_text(&writer, ",\"unix_ns\":");
    write_number(&writer, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    write_text(&writer, ",\"operations\":[");
    write_operations(&writer);
    write_text(&writer, "\n]}\n");
    flush(&writer);
}

/* --- the file --- */

static char file_path[PATH_BYTES];
static atomic_bool is_writing;

struct file_sink {
    int fd;
    bool has_failed;
};

static void write_to_file(void *user, const char *data, size_t bytes)
{
    struct file_sink *sink = user;

    while (bytes > 0 && !sink->has_failed) {
        ssize_t written = write(sink->fd, data, bytes);

        if (written < 0 && errno == EINTR)
            continue;
        sink->has_failed = written <= 0;
        if (written > 0) {
            data += written;
            bytes -= (size_t)written;
        }
    }
}

bool rk_flight_write_file(const char *reason)
{
    struct file_sink sink;

    if (!file_path[0] || atomic_exchange(&is_writing, true))
        return false;
    sink.has_failed = false;
    sink.fd = open(file_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (sink.fd >= 0) {
        rk_flight_write(write_to_file, &sink, reason);
        close(sink.fd);
    }
    atomic_store(&is_writing, false);
    return sink.fd >= 0 && !sink.has_failed;
}

/* --- signals --- */

static const struct {
    int number;
    const char *reason;
} fatal[] = {
    {SIGABRT, "SIGABRT"}, {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}};
static struct sigaction before[RK_ARRAY_LEN(fatal)];
static atomic_bool is_dying;

/* Another thread is writing already: wait for it, since the process dies after this handler. */
static void wait_for_writer(void)
{
    struct timespec moment = {.tv_nsec = 10000000};

    for (int ms = 0; ms < WAIT_MS && atomic_load(&is_writing); ms += 10)
        nanosleep(&moment, NULL);
}

/* Then the process dies as without the handler: with the previous action (a sanitizer's, the default), by the
 * same signal, which the faulting instruction raises again if there was one. */
static void on_fatal(int number, siginfo_t *info, void *context)
{
    int saved_errno = errno;

    (void)context;
    wait_for_writer();
    if (!atomic_exchange(&is_dying, true)) {
        for (size_t i = 0; i < RK_ARRAY_LEN(fatal); i++) {
            if (fatal[i].number == number)
                rk_flight_write_file(fatal[i].reason);
        }
    } else {
        wait_for_writer();
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(fatal); i++) {
        if (fatal[i].number == number)
            sigaction(number, &before[i], NULL);
    }
    if (info->si_code <= 0) /* sent by a process, abort() of this one as well */
        raise(number);
    errno = saved_errno;
}

void rk_flight_install(const char *path)
{
    struct sigaction action = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    snprintf(file_path, sizeof(file_path), "%s", path ? path : "");
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < RK_ARRAY_LEN(fatal); i++)
        sigaction(fatal[i].number, &action, &before[i]);
}
