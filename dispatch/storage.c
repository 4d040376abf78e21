/* The memory of columns. If the program requests it, freed large memory is kept for a short time: the system
 * zeroes every new page, which takes longer than filling it. */
#include "dispatch/batch_internal.h"

#include <pthread.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"

#define KEPT_BYTES_MIN ((size_t)4 << 20)

static struct {
    pthread_mutex_t lock;
    struct rk_storage *first; /* the most recently freed one */
    size_t bytes, max_bytes;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct rk_status *create(struct rk_storage **out, size_t bytes)
{
    void *memory;
    size_t total;

    *out = NULL;
    if (!rk_add_size(sizeof(struct rk_storage), bytes, &total))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "column of %zu bytes", bytes);
    RK_TRY(rk_try_alloc(&memory, total, "column"));
    *out = memory;
    (*out)->capacity = bytes;
    return NULL;
}

/* Takes kept memory that is large enough, but not much larger. */
static struct rk_storage *take_kept(size_t bytes)
{
    struct rk_storage *found;

    pthread_mutex_lock(&kept.lock);
    for (struct rk_storage **link = &kept.first; (found = *link) != NULL; link = &found->next) {
        if (found->capacity < bytes || found->capacity - bytes > bytes / 4)
            continue;
        *link = found->next;
        kept.bytes -= found->capacity;
        break;
    }
    pthread_mutex_unlock(&kept.lock);
    return found;
}

struct rk_status *rk_storage_create(struct rk_storage **out, size_t bytes, rk_fill_t fill)
{
    *out = fill == RK_FILL_NONE && bytes >= KEPT_BYTES_MIN ? take_kept(bytes) : NULL;
    if (!*out)
        RK_TRY(create(out, bytes));
    atomic_init(&(*out)->refs, 1);
    return NULL;
}

static bool keep(struct rk_storage *storage)
{
    bool is_kept;

    if (storage->capacity < KEPT_BYTES_MIN)
        return false;
    pthread_mutex_lock(&kept.lock);
    is_kept = kept.bytes + storage->capacity <= kept.max_bytes;
    if (is_kept) {
        kept.bytes += storage->capacity;
        storage->freed_ns = rk_time_now_ns();
        storage->next = kept.first;
        kept.first = storage;
    }
    pthread_mutex_unlock(&kept.lock);
    return is_kept;
}

void rk_storage_release(struct rk_storage *storage)
{
    if (storage && atomic_fetch_sub(&storage->refs, 1) == 1 && !keep(storage))
        rk_free(storage);
}

void rk_batch_keep_memory(size_t max_bytes)
{
    pthread_mutex_lock(&kept.lock);
    kept.max_bytes = max_bytes;
    pthread_mutex_unlock(&kept.lock);
}

size_t rk_batch_trim_memory(int64_t age_ms)
{
    int64_t until_ns = rk_time_now_ns() - age_ms * 1000000;
    struct rk_storage **link = &kept.first, *old, *next;
    size_t bytes;

    pthread_mutex_lock(&kept.lock);
    while (*link && (*link)->freed_ns > until_ns)
        link = &(*link)->next;
    old = *link; /* newest first: `old` and everything behind it has expired */
    *link = NULL;
    for (const struct rk_storage *storage = old; storage; storage = storage->next)
        kept.bytes -= storage->capacity;
    bytes = kept.bytes;
    pthread_mutex_unlock(&kept.lock);
    for (; old; old = next) {
        next = old->next;
        rk_free(old);
    }
    return bytes;
}
