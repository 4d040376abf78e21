/* Experiment trackers with a Python package of their own: wandb, mlflow, swanlab and trackio. The user's
 * Python runs share/rankd/python/rankd_logger.py, which reads the metrics as JSON lines from its standard
 * input; a slow tracker does not hold up the run. */
#include "rl/rk_loggers.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_time.h"
#include "base/rk_small_file.h"
#include "rl/rk_process.h"
#include "rl/rk_share.h"

#define SCRIPT "python/rankd_logger.py"
/* A tracker connects to its server before it answers; at the end it uploads what it has. */
#define BEGIN_MS    60000
#define FINISH_MS   60000
#define QUEUE_BYTES ((size_t)64 << 20) /* of lines that the program has not read: minutes of metrics */
#define POLL_MS     20
#define ANSWER_MAX  2000

struct program {
    const char *name;
    struct rk_process process;
    struct rk_process_messages messages;
    bool is_gone; /* it has closed its input or output */
};

/* Sends queued lines and copies standard error, both without waiting. */
static void pump(struct program *program)
{
    struct rk_process *process = &program->process;

    program->is_gone = program->is_gone || !rk_process_send(process);
    if (process->err >= 0)
        rk_process_pass_messages(process);
}

/* Waits until `is_done` or the deadline; false at the deadline. */
static bool pump_until(struct program *program, bool (*is_done)(struct program *program), int timeout_ms)
{
    int64_t deadline_ns = rk_time_now_ns() + (int64_t)timeout_ms * 1000000;

    while (!is_done(program)) {
        struct rk_process *process = &program->process;
        struct pollfd fds[] = {{process->out, POLLIN, 0}, {process->err, POLLIN, 0}};

        if (rk_time_now_ns() > deadline_ns)
            return false;
        if (program->is_gone) /* its streams are closed: poll would return at once */
            rk_time_sleep_ms(POLL_MS);
        else
            (void)poll(fds, RK_ARRAY_LEN(fds), POLL_MS);
        pump(program);
        program->is_gone = program->is_gone || !rk_process_receive(process);
    }
    return true;
}

/* True, too, when the program is gone, so that no answer will come. */
static bool has_answer(struct program *program)
{
    const struct rk_str *received = &program->process.received;

    return program->is_gone || (received->bytes > 0 && memchr(received->text, '\n', received->bytes) != NULL);
}

static bool has_ended(struct program *program)
{
    return rk_process_has_ended(&program->process);
}

/* Takes ownership of the message. */
static void put(struct program *program, struct rk_json *message)
{
    char *line = rk_json_dump(message, 0, false);

    rk_str_appendf(&program->process.to_send, "%s\n", line);
    rk_free(line);
    rk_json_free(message);
    pump(program);
}

static struct rk_status *put_or_drop(struct program *program, struct rk_json *message)
{
    if (!program->is_gone && program->process.to_send.bytes - program->process.num_sent < QUEUE_BYTES) {
        put(program, message);
        return NULL;
    }
    rk_json_free(message);
    if (program->is_gone)
        return RK_FAIL(RK_UNAVAILABLE, "its Python program has ended");
    return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                   "its Python program reads too slowly: more than %zu MiB wait for it", QUEUE_BYTES >> 20);
}

/* The job without the arguments of reward functions, which may be secret. */
static struct rk_json *public_config(const struct rk_config *job)
{
    struct rk_json *tree = rk_json_clone(rk_config_tree(job));

    rk_json_set_path(tree, "reward.custom_reward_function.reward_kwargs", rk_json_new_null());
    return tree;
}

/* The run's name: the name of its directory, which a continued run keeps. */
static struct rk_json *begin_message(const struct rk_logger_config *config)
{
    struct rk_json *message = rk_json_new_object(), *begin = rk_json_new_object();
    const char *experiment = rk_config_string(config->job, "trainer.experiment_name");
    const char *base = strrchr(config->run_dir, '/');
    char *run = rk_format("%s-%s", experiment, base ? base + 1 : config->run_dir);

    for (char *at = run; *at; at++)
        *at = strchr("/\\#?%:", *at) ? '-' : *at; /* wandb refuses these */
    rk_json_set(begin, "project", rk_json_new_string(rk_config_string(config->job, "trainer.project_name")));
    rk_json_set(begin, "experiment", rk_json_new_string(experiment));
    rk_json_set(begin, "run", rk_json_new_string(run));
    rk_json_set(begin, "dir", rk_json_new_string(config->run_dir));
    rk_json_set(begin, "config", public_config(config->job));
    rk_json_set(message, "begin", begin);
    rk_free(run);
    return message;
}

static struct rk_status *read_answer(struct program *program)
{
    struct rk_str line = {0}, end = {0};
    struct rk_json *answer = NULL;
    struct rk_status *st = NULL;

    if (rk_process_next_line(&program->process, &line)) {
        st = rk_json_parse(&answer, rk_str_text(&line), line.bytes, SCRIPT, 0);
        if (!st && rk_json_find(answer, "error"))
            st = RK_FAIL(RK_UNAVAILABLE, "%.*s", ANSWER_MAX,
                         rk_json_as_string(rk_json_find(answer, "error"), "unknown error"));
    } else {
        rk_process_describe_end(&program->process, &end);
        st = RK_FAIL(RK_UNAVAILABLE, "its Python program %s before it was ready", rk_str_text(&end));
    }
    rk_json_free(answer);
    rk_str_fini(&line);
    rk_str_fini(&end);
    return st;
}

static struct rk_status *start(struct program *program, const struct rk_logger_config *config)
{
    const char *python = rk_config_string(config->job, "reward.python");
    char *script = NULL, *interpreter;
    struct rk_status *st = rk_share_find(&script, SCRIPT);

    interpreter = rk_resolve_program(config->job_dir, python ? python : "python3");
    if (!st) {
        char *argv[] = {interpreter, script, (char *)program->name, NULL};

        st = rk_process_start(&program->process, argv, config->run_dir);
    }
    rk_free(interpreter);
    rk_free(script);
    if (st)
        return st;
    put(program, begin_message(config));
    if (!pump_until(program, has_answer, BEGIN_MS))
        return RK_FAIL(RK_DEADLINE_EXCEEDED, "not ready after %d s", BEGIN_MS / 1000);
    return read_answer(program);
}

static void close_program(void *state)
{
    struct program *program = state;

    rk_process_kill(&program->process);
    rk_free(program);
}

static struct rk_status *open_program(void **state, const struct rk_logger_config *config)
{
    struct program *program = rk_calloc(1, sizeof(*program));
    struct rk_status *st;

    program->name = config->name;
    snprintf(program->process.prefix, sizeof(program->process.prefix), "%s: ", config->name);
    program->messages.name = config->name;
    program->process.limit = &program->messages;
    st = start(program, config);
    *state = st ? NULL : program;
    if (st)
        close_program(program);
    return st;
}

static struct rk_status *log_step(void *state, int64_t step, const struct rk_json *metrics)
{
    struct rk_json *message = rk_json_new_object();

    rk_json_set(message, "step", rk_json_new_int(step));
    rk_json_set(message, "metrics", rk_json_clone(metrics));
    return put_or_drop(state, message);
}

static struct rk_status *log_samples(void *state, int64_t step, const struct rk_samples *samples)
{
    struct rk_json *message = rk_json_new_object(), *rows = rk_json_new_array();

    for (int64_t i = 0; i < samples->count; i++) {
        const struct rk_sample *sample = &samples->items[i];
        struct rk_json *row = rk_json_new_object();

        rk_json_set(row, "input", rk_json_new_string(sample->input));
        rk_json_set(row, "output", rk_json_new_string(sample->output));
        rk_json_set(row, "gts", rk_json_new_string(sample->gts));
        rk_json_set(row, "score", rk_json_new_real(sample->score));
        rk_json_append(rows, row);
    }
    rk_json_set(message, "step", rk_json_new_int(step));
    rk_json_set(message, "tag", rk_json_new_string(samples->tag));
    rk_json_set(message, "samples", rows);
    return put_or_drop(state, message);
}

static struct rk_status *end_of(struct program *program)
{
    struct rk_str end = {0};
    struct rk_status *st = NULL;

    rk_process_describe_end(&program->process, &end);
    if (strcmp(rk_str_text(&end), RK_PROCESS_SUCCESS) != 0)
        st = RK_FAIL(RK_UNAVAILABLE, "its Python program %s; its last metrics may be missing",
                     rk_str_text(&end));
    rk_str_fini(&end);
    return st;
}

static struct rk_status *finish(void *state, const char *outcome)
{
    struct program *program = state;
    struct rk_json *message = rk_json_new_object();

    rk_json_set(message, "finish", rk_json_new_string(outcome));
    RK_TRY(put_or_drop(program, message));
    if (!pump_until(program, has_ended, FINISH_MS))
        return RK_FAIL(RK_DEADLINE_EXCEEDED, "not finished after %d s; its last metrics may be missing",
                       FINISH_MS / 1000);
    return end_of(program);
}

#define ROW(logger, text)                             \
    const struct rk_logger_ops rk_logger_##logger = { \
        .name = #logger,                              \
        .advice = text,                               \
        .open = open_program,                         \
        .log = log_step,                              \
        .log_samples = log_samples,                   \
        .finish = finish,                             \
        .close = close_program,                       \
    }

ROW(wandb, "upload them with 'wandb sync --sync-tensorboard RUN_DIR/tensorboard'");
ROW(mlflow, "log the lines of RUN_DIR/metrics.jsonl with mlflow.log_metrics");
ROW(swanlab, "convert them with 'swanlab convert -t tensorboard'");
ROW(trackio, "import them with trackio.import_tf_events");
