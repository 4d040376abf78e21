/* example: "step N" to the log of rankctl.
 *
 * A template of CONTRIBUTING.md (tests/scripts/test_contributing.py). */
#include "base/rk_log.h"
#include "rl/rk_loggers.h"

static struct rk_status *open_logger(void **state, const struct rk_logger_config *config)
{
    (void)config;
    *state = NULL;
    return NULL;
}

static struct rk_status *log_step(void *state, int64_t step, const struct rk_json *metrics)
{
    (void)state;
    RK_WARN("example: step %lld has %lld metrics", (long long)step, (long long)rk_json_count(metrics));
    return NULL;
}

static void close_logger(void *state)
{
    (void)state;
}

const struct rk_logger_ops rk_logger_example = {
    .name = "example",
    .open = open_logger,
    .log = log_step,
    .close = close_logger,
};
