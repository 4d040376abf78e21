/* Worker processes of a reward.
 *
 * One loop over poll() does everything: it sends items to free workers, reads answers in any order,
 * copies standard error, and checks the time limits. Results are placed by index, so timing cannot change
 * them.
 *
 * A worker that ends, violates the protocol or does not answer in time is killed with its group and started
 * again after a pause that doubles while it answers nothing. A single item that it had fails; of several any
 * may be the cause, so the pool sends each once more, alone. */
#include "rl/rewards/pool_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "rl/rk_process.h"
#include "rl/rewards/rewards.h"
#include "rl/rewards/wire_internal.h"

#define NUM_WORKERS      8 /* verl's reward.num_workers */
#define NUM_WORKERS_MAX  256
#define BATCH_SIZE_MAX   4096
#define TIMEOUT_MS       30000
#define START_TIMEOUT_MS 60000
#define WATCH_MS         100 /* interval in which a wait checks interrupts and ended workers */
#define PAUSE_MS         100 /* before a restart; doubles */
#define RESTARTS_MAX     5   /* consecutive ones that end without an item */
#define MS               1000000LL

struct sent {
    int64_t index; /* of the item in the run */
    int64_t deadline_ns;
};

typedef enum worker_state { WORKER_DOWN, WORKER_STARTING, WORKER_READY } worker_state_t;

struct worker {
    struct rk_process process;
    worker_state_t state;
    int64_t start_ns;     /* down: time of the restart; starting: time limit of the hello */
    int64_t num_failures; /* in a row without an item */
    RK_ARRAY(struct sent) sent;
    bool has_suspect; /* `sent` is one item that was with a lost worker before */
};

struct rk_reward_pool {
    struct rk_reward_pool_config config;
    struct worker *workers;
    struct rk_process_messages messages;
    int64_t next_id; /* ids are never reused, so a late answer cannot match another item */
};

/* State of one call, or of the first start without a call. */
struct run {
    struct rk_reward_pool *pool;
    const struct rk_reward_call *call;
    int64_t first_id;
    int64_t num_taken, num_done, num_failed; /* items sent at least once; items with a result; failed ones */
    RK_ARRAY(int64_t) suspects;              /* to be sent alone */
};

/* --- configuration --- */

struct rk_status *rk_reward_pool_read_config(struct rk_reward_pool_config *out, const struct rk_json *config)
{
    int64_t num_workers = NUM_WORKERS;

    *out = (struct rk_reward_pool_config){
        .batch_size = 1, .timeout_ms = TIMEOUT_MS, .start_timeout_ms = START_TIMEOUT_MS};
    RK_TRY(rk_json_opt_i64(config, "reward", "num_workers", 1, NUM_WORKERS_MAX, &num_workers));
    out->num_workers = (int32_t)num_workers;
    RK_TRY(rk_json_opt_i64(config, "reward", "batch_size", 1, BATCH_SIZE_MAX, &out->batch_size));
    RK_TRY(rk_reward_opt_duration(config, "timeout", &out->timeout_ms));
    return rk_reward_opt_duration(config, "start_timeout", &out->start_timeout_ms);
}

/* --- start and end of a worker --- */

static const char *program_of(const struct rk_reward_pool *pool)
{
    return pool->config.argv[0];
}

static struct rk_status *start_worker(struct rk_reward_pool *pool, struct worker *worker)
{
    struct rk_str *line = &worker->process.to_send;
    struct rk_status *st = rk_process_start(&worker->process, pool->config.argv, pool->config.dir);

    if (st)
        return st;
    rk_str_appendf(line,
                   "{\"hello\": %d, \"worker\": %d, \"num_workers\": %d, \"batch_size\": %lld, "
                   "\"timeout_ms\": %lld%s%s}\n",
                   RK_REWARD_PROTOCOL, (int)(worker - pool->workers), pool->config.num_workers,
                   (long long)pool->config.batch_size, (long long)pool->config.timeout_ms,
                   pool->config.kwargs ? ", \"kwargs\": " : "",
                   pool->config.kwargs ? pool->config.kwargs : "");
    worker->state = WORKER_STARTING;
    worker->start_ns = rk_time_now_ns() + pool->config.start_timeout_ms * MS;
    return NULL;
}

static void finish_item(struct run *run, int64_t index)
{
    rk_reward_outcome_t outcome = run->call->results[index].outcome;

    run->num_done++;
    run->num_failed += outcome != RK_REWARD_SCORED && outcome != RK_REWARD_SKIPPED;
}

/* Handles the items of a lost worker. */
static void give_back_items(struct run *run, struct worker *worker, rk_reward_outcome_t outcome,
                            const char *why)
{
    if (worker->sent.count == 1) {
        rk_reward_fail(&run->call->results[worker->sent.items[0].index], outcome, "%s", why);
        finish_item(run, worker->sent.items[0].index);
    } else {
        for (int64_t i = 0; i < worker->sent.count; i++)
            rk_array_append(&run->suspects, worker->sent.items[i].index);
    }
    worker->sent.count = 0;
}

/* Kills a worker that failed, and schedules its restart. `why` follows "reward program 'x' ". */
static struct rk_status *lose_worker(struct run *run, struct worker *worker, rk_reward_outcome_t outcome,
                                     const char *why)
{
    struct rk_reward_pool *pool = run->pool;
    int64_t pause_ms;

    rk_process_kill(&worker->process);
    worker->num_failures = worker->sent.count > 0 ? 0 : worker->num_failures + 1;
    pause_ms = PAUSE_MS << RK_MAX(worker->num_failures - 1, 0);
    worker->state = WORKER_DOWN;
    worker->start_ns = rk_time_now_ns() + pause_ms * MS;
    give_back_items(run, worker, outcome, why);
    if (!run->call)
        return RK_FAIL(RK_FAILED_PRECONDITION, "reward program '%s' %s", program_of(pool), why);
    if (worker->num_failures > RESTARTS_MAX)
        return RK_FAIL(RK_ABORTED, "reward program '%s' %s; %d restarts failed", program_of(pool), why,
                       RESTARTS_MAX);
    RK_WARN("reward worker=%d program='%s' %s; starting it again", (int)(worker - pool->workers),
            program_of(pool), why);
    return NULL;
}

static struct rk_status *lose_ended_worker(struct run *run, struct worker *worker)
{
    struct rk_str why = {0};
    struct rk_status *st;

    rk_process_describe_end(&worker->process, &why);
    st = lose_worker(run, worker, RK_REWARD_CRASH, rk_str_text(&why));
    rk_str_fini(&why);
    return st;
}

/* Frees the status, which describes the violation of the protocol. */
static struct rk_status *lose_wrong_worker(struct run *run, struct worker *worker, struct rk_status *wrong)
{
    char *why = rk_format("violated the protocol: %s", rk_status_message(wrong));
    struct rk_status *st;

    st = lose_worker(run, worker, RK_REWARD_CRASH, why);
    rk_free(why);
    rk_status_free(wrong);
    return st;
}

/* --- items out, answers in --- */

static int64_t next_deadline(const struct rk_reward_pool *pool)
{
    return rk_time_now_ns() + pool->config.timeout_ms * MS;
}

/* Sends a worker as many items as it can take, at most its share of the rest. A suspect is sent alone. */
static void feed(struct run *run, struct worker *worker)
{
    struct rk_reward_pool *pool = run->pool;
    int64_t room = pool->config.batch_size - worker->sent.count, count = 0;
    int64_t left = run->call->num_items - run->num_taken;
    int64_t share = left / pool->config.num_workers + (left % pool->config.num_workers != 0);
    RK_ARRAY(int64_t) indices = {0};

    if (worker->has_suspect && worker->sent.count > 0)
        return;
    worker->has_suspect = worker->sent.count == 0 && run->suspects.count > 0;
    if (worker->has_suspect)
        rk_array_append(&indices, run->suspects.items[--run->suspects.count]);
    else
        count = RK_MIN(room, share);
    for (int64_t i = 0; i < count; i++)
        rk_array_append(&indices, run->num_taken++);
    for (int64_t i = 0; i < indices.count; i++)
        rk_array_append(&worker->sent, (struct sent){indices.items[i], next_deadline(pool)});
    if (indices.count > 0)
        rk_reward_wire_append_items(&worker->process.to_send, run->call->items, indices.items, indices.count,
                                    run->first_id);
    rk_array_fini(&indices);
}

static struct rk_status *take_answer(struct run *run, struct worker *worker, const struct rk_str *line)
{
    struct rk_reward_result result;
    struct rk_status *st;
    int64_t id = 0, i = 0;

    st = rk_reward_wire_parse_answer(&id, &result, rk_str_text(line), line->bytes);
    for (i = 0; !st && i < worker->sent.count; i++) {
        if (worker->sent.items[i].index == id - run->first_id)
            break;
    }
    if (!st && i == worker->sent.count)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "an answer for the item %lld, which it does not have",
                     (long long)id);
    if (st) {
        rk_reward_results_fini(&result, 1);
        return st;
    }
    run->call->results[worker->sent.items[i].index] = result;
    finish_item(run, worker->sent.items[i].index);
    worker->sent.items[i] = worker->sent.items[--worker->sent.count];
    worker->num_failures = 0;
    return NULL;
}

static struct rk_status *take_hello(struct worker *worker, const struct rk_str *line)
{
    RK_TRY(rk_reward_wire_check_hello(rk_str_text(line), line->bytes));
    worker->state = WORKER_READY;
    return NULL;
}

static struct rk_status *take_lines(struct run *run, struct worker *worker)
{
    struct rk_str line = {0};
    struct rk_status *wrong = NULL;

    while (!wrong && rk_process_next_line(&worker->process, &line))
        wrong =
            worker->state == WORKER_STARTING ? take_hello(worker, &line) : take_answer(run, worker, &line);
    rk_str_fini(&line);
    if (!wrong && worker->process.received.bytes > RK_REWARD_ANSWER_BYTES)
        wrong = RK_FAIL(RK_RESOURCE_EXHAUSTED, "an answer is longer than %d bytes", RK_REWARD_ANSWER_BYTES);
    if (rk_status_code(wrong) == RK_FAILED_PRECONDITION) { /* a hello with the reason why it cannot start */
        struct rk_status *st = lose_worker(run, worker, RK_REWARD_CRASH, rk_status_message(wrong));

        rk_status_free(wrong);
        return st;
    }
    return wrong ? lose_wrong_worker(run, worker, wrong) : NULL;
}

/* --- the loop --- */

enum { FD_IN, FD_OUT, FD_ERR, FDS };

static void fill_poll(struct pollfd *fds, const struct worker *worker)
{
    const struct rk_process *process = &worker->process;
    bool is_up = worker->state != WORKER_DOWN;

    fds[FD_IN] =
        (struct pollfd){.fd = is_up && process->to_send.bytes > 0 ? process->in : -1, .events = POLLOUT};
    fds[FD_OUT] = (struct pollfd){.fd = is_up ? process->out : -1, .events = POLLIN};
    fds[FD_ERR] = (struct pollfd){.fd = is_up ? process->err : -1, .events = POLLIN};
}

static struct rk_status *serve(struct run *run, struct worker *worker, const struct pollfd *fds)
{
    bool is_alive = true;

    if (fds[FD_ERR].revents)
        rk_process_pass_messages(&worker->process);
    if (fds[FD_OUT].revents) {
        is_alive = rk_process_receive(&worker->process);
        RK_TRY(take_lines(run, worker));
    }
    if (worker->state == WORKER_DOWN)
        return NULL;
    if (is_alive && fds[FD_IN].revents)
        is_alive = rk_process_send(&worker->process);
    return is_alive ? NULL : lose_ended_worker(run, worker);
}

/* Clocks of one worker: when it is to be started, and how long it may take. */
static struct rk_status *check_clocks(struct run *run, struct worker *worker, int64_t now_ns)
{
    const struct rk_reward_pool_config *config = &run->pool->config;
    char why[64];
    bool is_late = false;

    if (worker->state == WORKER_DOWN)
        return now_ns >= worker->start_ns ? start_worker(run->pool, worker) : NULL;
    if (worker->state == WORKER_STARTING && now_ns >= worker->start_ns) {
        (void)snprintf(why, sizeof(why), "sent no hello within %lld ms", (long long)config->start_timeout_ms);
        return lose_worker(run, worker, RK_REWARD_CRASH, why);
    }
    for (int64_t i = 0; i < worker->sent.count; i++)
        is_late = is_late || now_ns >= worker->sent.items[i].deadline_ns;
    if (!is_late)
        return NULL;
    (void)snprintf(why, sizeof(why), "did not answer within %lld ms", (long long)config->timeout_ms);
    return lose_worker(run, worker, RK_REWARD_TIMEOUT, why);
}

/* The time until the next deadline. */
static int wait_ms(const struct run *run, int64_t now_ns)
{
    int64_t wait_ns = WATCH_MS * MS;

    for (int32_t i = 0; i < run->pool->config.num_workers; i++) {
        const struct worker *worker = &run->pool->workers[i];

        if (worker->state != WORKER_READY)
            wait_ns = RK_MIN(wait_ns, worker->start_ns - now_ns);
        for (int64_t j = 0; j < worker->sent.count; j++)
            wait_ns = RK_MIN(wait_ns, worker->sent.items[j].deadline_ns - now_ns);
    }
    return (int)((RK_MAX(wait_ns, 0) + MS - 1) / MS);
}

static struct rk_status *turn(struct run *run, struct pollfd *fds)
{
    int32_t num_workers = run->pool->config.num_workers;
    int64_t now_ns = rk_time_now_ns();
    int num_events;

    for (int32_t i = 0; i < num_workers; i++) {
        struct worker *worker = &run->pool->workers[i];

        RK_TRY(check_clocks(run, worker, now_ns));
        if (run->call && worker->state == WORKER_READY)
            feed(run, worker);
        fill_poll(&fds[i * FDS], worker);
    }
    num_events = poll(fds, (nfds_t)(num_workers * FDS), wait_ms(run, now_ns));
    if (num_events < 0 && errno == EINTR)
        return NULL;
    if (num_events < 0)
        return RK_FAIL(RK_INTERNAL, "reward: poll: %s", strerror(errno));
    for (int32_t i = 0; i < num_workers; i++) {
        struct worker *worker = &run->pool->workers[i];

        if (worker->state == WORKER_DOWN)
            continue;
        if (num_events > 0)
            RK_TRY(serve(run, worker, &fds[i * FDS]));
        else if (rk_process_has_ended(&worker->process)) /* its children hold its output open */
            RK_TRY(lose_ended_worker(run, worker));
    }
    return NULL;
}

static bool are_all_ready(const struct rk_reward_pool *pool)
{
    for (int32_t i = 0; i < pool->config.num_workers; i++) {
        if (pool->workers[i].state != WORKER_READY)
            return false;
    }
    return true;
}

static bool is_done(const struct run *run)
{
    if (!run->call)
        return are_all_ready(run->pool);
    return run->num_done == run->call->num_items || run->num_failed > run->call->max_failed;
}

static struct rk_status *loop(struct run *run)
{
    struct rk_reward_pool *pool = run->pool;
    struct pollfd *fds = rk_calloc((size_t)pool->config.num_workers * FDS, sizeof(*fds));
    struct rk_status *st = NULL;

    while (!st && !is_done(run)) {
        if (run->call && rk_reward_is_cancelled(run->call->watch)) {
            for (int32_t i = 0; i < pool->config.num_workers; i++)
                rk_process_signal(&pool->workers[i].process, SIGTERM);
            st = RK_FAIL(RK_CANCELLED, "interrupted while %lld of %lld items had a score",
                         (long long)run->num_done, (long long)run->call->num_items);
        } else {
            st = turn(run, fds);
        }
    }
    rk_free(fds);
    return st;
}

/* --- entry points --- */

struct rk_status *rk_reward_pool_score(struct rk_reward_pool *pool, const struct rk_reward_call *call)
{
    struct run run = {.pool = pool, .call = call, .first_id = pool->next_id};
    struct rk_status *st;

    pool->next_id += call->num_items;
    st = loop(&run);
    for (int32_t i = 0; i < pool->config.num_workers; i++)
        pool->workers[i].sent.count = 0; /* after a failure */
    rk_array_fini(&run.suspects);
    return st;
}

struct rk_status *rk_reward_pool_create(struct rk_reward_pool **out,
                                        const struct rk_reward_pool_config *config)
{
    struct rk_reward_pool *pool = rk_calloc(1, sizeof(*pool));
    struct run run = {.pool = pool};
    struct rk_status *st = NULL;

    pool->config = *config;
    pool->messages.name = "reward";
    pool->workers = rk_calloc((size_t)config->num_workers, sizeof(*pool->workers));
    for (int32_t i = 0; i < config->num_workers && !st; i++) {
        struct rk_process *process = &pool->workers[i].process;

        process->limit = &pool->messages;
        (void)snprintf(process->prefix, sizeof(process->prefix), "reward[%d]: ", i);
        st = start_worker(pool, &pool->workers[i]);
    }
    if (!st)
        st = loop(&run);
    if (st) {
        rk_reward_pool_destroy(pool);
        pool = NULL;
    }
    *out = pool;
    return st;
}

static void stop_workers(struct rk_reward_pool *pool)
{
    struct rk_process **processes = rk_calloc((size_t)pool->config.num_workers, sizeof(*processes));

    for (int32_t i = 0; i < pool->config.num_workers; i++)
        processes[i] = &pool->workers[i].process;
    rk_processes_stop(processes, pool->config.num_workers);
    rk_free(processes);
}

void rk_reward_pool_destroy(struct rk_reward_pool *pool)
{
    if (!pool)
        return;
    stop_workers(pool);
    rk_process_messages_report(&pool->messages);
    for (int32_t i = 0; i < pool->config.num_workers; i++)
        rk_array_fini(&pool->workers[i].sent);
    rk_free(pool->workers);
    for (char **word = pool->config.argv; word && *word; word++)
        rk_free(*word);
    rk_free(pool->config.argv);
    rk_free(pool->config.dir);
    rk_free(pool->config.kwargs);
    rk_free(pool);
}
