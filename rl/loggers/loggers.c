/* The logger table, and the loggers of one run. */
#include "rl/rk_loggers.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"

static const struct rk_logger_ops *const table[] = {
#define X(name) &rk_logger_##name,
    RK_LOGGER_TABLE(X)
#undef X
};

const struct rk_logger_ops *rk_logger_find(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(table); i++) {
        if (strcmp(table[i]->name, name) == 0)
            return table[i];
    }
    return NULL;
}

const char *rk_logger_names(void)
{
    static const char names[] =
#define X(name) ", " #name
        RK_LOGGER_TABLE(X)
#undef X
        ;

    return names + strlen(", ");
}

const char *rk_logger_advice(const char *name)
{
    static const struct {
        const char *name, *advice;
    } rows[] = {
        {"vemlp_wandb", "use tensorboard, which it synchronises from"},
        {"clearml", "use tensorboard, which it reads"},
        {"rl_insight", "use file"},
        {"tracking", "use wandb"},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].advice;
    }
    return NULL;
}

struct logger {
    const struct rk_logger_ops *ops;
    void *state;
    bool is_failing; /* a warning was logged */
};

struct rk_loggers {
    RK_ARRAY(struct logger) items;
};

static struct rk_status *add(struct rk_loggers *loggers, const struct rk_logger_ops *ops,
                             const struct rk_logger_config *config)
{
    struct rk_logger_config named = *config;
    struct logger logger = {.ops = ops};
    struct rk_status *st;

    named.name = ops->name;
    st = ops->open(&logger.state, &named);
    if (st)
        return RK_WRAP(st, "logger %s", ops->name);
    rk_array_append(&loggers->items, logger);
    return NULL;
}

static bool has_logger(const struct rk_loggers *loggers, const struct rk_logger_ops *ops)
{
    for (int64_t i = 0; i < loggers->items.count; i++) {
        if (loggers->items.items[i].ops == ops)
            return true;
    }
    return false;
}

/* Takes the status of opening a logger: TensorBoard's files in place of one that this machine lacks. */
static struct rk_status *replace(struct rk_loggers *loggers, const struct rk_logger_ops *ops,
                                 const struct rk_logger_config *config, struct rk_status *st)
{
    if (!st || !ops->advice)
        return st;
    RK_WARN("%s; the run writes TensorBoard's event files instead: %s", rk_status_message(st), ops->advice);
    rk_status_free(st);
    return has_logger(loggers, &rk_logger_tensorboard) ? NULL : add(loggers, &rk_logger_tensorboard, config);
}

struct rk_status *rk_loggers_create(struct rk_loggers **out, const struct rk_logger_config *config)
{
    const struct rk_json *names = rk_config_json(config->job, "trainer.logger");
    struct rk_loggers *loggers = rk_calloc(1, sizeof(*loggers));
    struct rk_status *st = add(loggers, &rk_logger_report, config);

    *out = NULL;
    for (int64_t i = 0; i < rk_json_count(names) && !st; i++) {
        const struct rk_logger_ops *ops = rk_logger_find(rk_json_as_string(rk_json_at(names, i), ""));

        RK_ASSERT(ops);
        if (!has_logger(loggers, ops) && (ops != &rk_logger_console || config->console))
            st = replace(loggers, ops, config, add(loggers, ops, config));
    }
    if (st) {
        rk_loggers_destroy(loggers);
        return st;
    }
    *out = loggers;
    return NULL;
}

void rk_loggers_destroy(struct rk_loggers *loggers)
{
    for (int64_t i = 0; loggers && i < loggers->items.count; i++)
        loggers->items.items[i].ops->close(loggers->items.items[i].state);
    if (loggers)
        rk_array_fini(&loggers->items);
    rk_free(loggers);
}

/* Takes the status. */
static void warn(struct logger *logger, struct rk_status *st)
{
    if (st && !logger->is_failing)
        RK_WARN("logger %s: %s; the run continues without it", logger->ops->name, rk_status_message(st));
    logger->is_failing = st != NULL;
    rk_status_free(st);
}

void rk_loggers_begin(struct rk_loggers *loggers, int64_t first_step, int64_t total_steps)
{
    for (int64_t i = 0; loggers && i < loggers->items.count; i++) {
        struct logger *logger = &loggers->items.items[i];

        if (logger->ops->begin)
            warn(logger, logger->ops->begin(logger->state, first_step, total_steps));
    }
}

void rk_loggers_log(struct rk_loggers *loggers, int64_t step, const struct rk_json *metrics)
{
    for (int64_t i = 0; loggers && i < loggers->items.count; i++) {
        struct logger *logger = &loggers->items.items[i];

        warn(logger, logger->ops->log(logger->state, step, metrics));
    }
}

void rk_loggers_log_samples(struct rk_loggers *loggers, int64_t step, const struct rk_samples *samples)
{
    for (int64_t i = 0; loggers && i < loggers->items.count; i++) {
        struct logger *logger = &loggers->items.items[i];

        if (logger->ops->log_samples)
            warn(logger, logger->ops->log_samples(logger->state, step, samples));
    }
}

void rk_loggers_phase(struct rk_loggers *loggers, const char *phase)
{
    for (int64_t i = 0; loggers && i < loggers->items.count; i++) {
        struct logger *logger = &loggers->items.items[i];

        if (logger->ops->on_phase)
            logger->ops->on_phase(logger->state, phase);
    }
}

void rk_loggers_progress(struct rk_loggers *loggers, uint64_t done, uint64_t total)
{
    for (int64_t i = 0; loggers && i < loggers->items.count; i++) {
        struct logger *logger = &loggers->items.items[i];

        if (logger->ops->on_progress)
            logger->ops->on_progress(logger->state, done, total);
    }
}

void rk_loggers_end_line(struct rk_loggers *loggers)
{
    for (int64_t i = 0; loggers && i < loggers->items.count; i++) {
        struct logger *logger = &loggers->items.items[i];

        if (logger->ops->end_line)
            logger->ops->end_line(logger->state);
    }
}

void rk_loggers_finish(struct rk_loggers *loggers, const char *outcome)
{
    for (int64_t i = 0; loggers && i < loggers->items.count; i++) {
        struct logger *logger = &loggers->items.items[i];

        if (logger->ops->finish)
            warn(logger, logger->ops->finish(logger->state, outcome));
    }
}
