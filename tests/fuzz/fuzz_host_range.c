/* Goal: a host list gives an error or names without brackets, never more than the limit; an expanded name
 * expands to itself. A count of tasks per node gives as many daemons as its sum, or an error. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "driver/hosts_internal.h"
#include "driver/rk_driver.h"

#define MAX_NAMES 200

struct seen {
    int64_t count;
    const char *only; /* NULL: any name */
};

static struct rk_status *see(void *user, const char *name)
{
    struct seen *seen = user;

    seen->count++;
    RK_ASSERT(!strpbrk(name, "[]"));
    RK_ASSERT(!seen->only || strcmp(seen->only, name) == 0);
    return NULL;
}

static struct rk_status *see_and_repeat(void *user, const char *name)
{
    struct seen again = {.only = name};
    struct rk_status *st = rk_host_ranges_expand(name, 1, see, &again);

    RK_ASSERT(!st && again.count == 1);
    return see(user, name);
}

static void check_terms(const char *text)
{
    while (*text) {
        size_t bytes = rk_hosts_term_bytes(text);
        char *term = rk_strndup(text, bytes);
        struct seen seen = {0};
        struct rk_status *st = rk_host_ranges_expand(term, MAX_NAMES, see_and_repeat, &seen);

        RK_ASSERT(st ? seen.count == 0 : seen.count >= 1 && seen.count <= MAX_NAMES);
        rk_status_free(st);
        rk_free(term);
        text += bytes + (text[bytes] == ',');
    }
}

static void check_slurm(const char *text)
{
    struct seen seen = {0};
    struct rk_status *st;

    setenv("SLURM_JOB_NODELIST", "n[1-4]", 1);
    setenv("SLURM_TASKS_PER_NODE", text, 1);
    st = rk_hosts_slurm("7000", see, &seen);
    RK_ASSERT(st ? seen.count == 0 : seen.count >= 4);
    rk_status_free(st);
    setenv("SLURM_JOB_NODELIST", text, 1);
    setenv("SLURM_TASKS_PER_NODE", "1", 1);
    rk_status_free(rk_hosts_slurm("7000:2", see, &seen));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = rk_strndup((const char *)data, strnlen((const char *)data, bytes));

    check_terms(text);
    check_slurm(text);
    rk_free(text);
    return 0;
}
