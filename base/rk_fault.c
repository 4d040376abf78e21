/* Named fault points. The variable is read again when its text changes, so that a test can set it between
 * calls. A malformed value aborts: a test would pass without the fault that it
 * needs. */
#include "base/rk_fault.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_env.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

typedef enum action { ACTION_NONE, ACTION_KILL, ACTION_SLEEP, ACTION_STOP, ACTION_FAIL } action_t;

struct fault {
    char *name;
    action_t action;
    int64_t sleep_ms;
    int64_t first; /* 1-based hit at which it starts to act */
    int64_t hits;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two below */
static char *parsed_text;
static RK_ARRAY(struct fault) faults;

/* "name=kill", "name=stop", "name=fail@3", "name=sleep:2s". Changes `item`. */
static bool parse_fault(char *item, struct fault *out)
{
    char *equals = strchr(item, '=');
    char *action, *at;

    if (!equals || equals == item)
        return false;
    *equals = '\0';
    action = equals + 1;
    *out = (struct fault){.first = 1};
    at = strchr(action, '@');
    if (at) {
        *at = '\0';
        if (!rk_parse_i64(at + 1, &out->first) || out->first < 1)
            return false;
    }
    if (strcmp(action, "kill") == 0)
        out->action = ACTION_KILL;
    else if (strcmp(action, "fail") == 0)
        out->action = ACTION_FAIL;
    else if (strcmp(action, "stop") == 0)
        out->action = ACTION_STOP;
    else if (rk_str_has_prefix(action, "sleep:") && rk_parse_duration_ms(action + 6, &out->sleep_ms))
        out->action = ACTION_SLEEP;
    else
        return false;
    out->name = rk_strdup(item);
    return true;
}

static void parse_all(const char *text)
{
    char *copy = rk_strdup(text), *rest = copy, *item;

    for (int64_t i = 0; i < faults.count; i++)
        rk_free(faults.items[i].name);
    rk_array_fini(&faults);
    while ((item = strsep(&rest, ",")) != NULL) {
        struct fault fault;
        bool is_well_formed = *item == '\0' || parse_fault(item, &fault);

        if (!is_well_formed)
            RK_ERROR("RANKD_FAULTS: '%s' is not NAME=kill|stop|fail|sleep:DURATION[@N]", text);
        RK_ASSERT(is_well_formed);
        if (*item)
            rk_array_append(&faults, fault);
    }
    rk_free(copy);
    rk_free(parsed_text);
    parsed_text = rk_strdup(text);
}

static bool acts_once(action_t action)
{
    return action == ACTION_FAIL || action == ACTION_STOP;
}

/* The action of the fault point now. */
static action_t take_action(const char *name, int64_t *sleep_ms)
{
    const char *text = rk_env("RANKD_FAULTS");
    action_t action = ACTION_NONE;

    pthread_mutex_lock(&lock);
    if (strcmp(text ? text : "", parsed_text ? parsed_text : "") != 0)
        parse_all(text ? text : "");
    for (int64_t i = 0; i < faults.count; i++) {
        struct fault *fault = &faults.items[i];

        if (strcmp(fault->name, name) != 0)
            continue;
        fault->hits++;
        if (acts_once(fault->action) ? fault->hits == fault->first : fault->hits >= fault->first) {
            action = fault->action;
            *sleep_ms = fault->sleep_ms;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return action;
}

bool rk_fault_hit(const char *name)
{
    int64_t sleep_ms = 0;
    action_t action = take_action(name, &sleep_ms);

    if (action != ACTION_NONE)
        RK_WARN("fault point %s: acting", name);
    if (action == ACTION_KILL)
        raise(SIGKILL);
    if (action == ACTION_STOP)
        raise(SIGSTOP);
    if (action == ACTION_SLEEP)
        rk_time_sleep_ms(sleep_ms);
    return action == ACTION_FAIL;
}
