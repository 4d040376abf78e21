/* TensorBoard's event files, which `wandb sync` reads too: in TENSORBOARD_DIR, else in tensorboard/ of the
 * run directory. A run that is continued begins a new file, whose first record makes readers drop the steps
 * that are repeated. */
#include "rl/rk_loggers.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_env.h"
#include "base/rk_time.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"

#define HOST_BYTES    256
#define NAME_ATTEMPTS 100

struct tensorboard {
    char *path;
    int fd;
    bool begins_again;
    int64_t bytes; /* of whole records */
};

static double wall_time(void)
{
    return (double)rk_time_unix_ns() / 1e9;
}

/* Appends all records or none: readers stop at an incomplete one. */
static struct rk_status *put(struct tensorboard *tb, struct rk_str *records)
{
    struct rk_status *st = NULL;
    size_t done = 0;

    while (done < records->bytes && !st) {
        ssize_t put = pwrite(tb->fd, records->text + done, records->bytes - done, tb->bytes + (off_t)done);

        if (put >= 0)
            done += (size_t)put;
        else if (errno != EINTR)
            st = rk_file_errno("cannot write", tb->path);
    }
    if (!st)
        tb->bytes += (int64_t)done;
    else if (ftruncate(tb->fd, tb->bytes) != 0)
        st = RK_WRAP(st, "the file ends with a torn record: %s", strerror(errno));
    rk_str_fini(records);
    return st;
}

/* A new file with a name of TensorBoard's form: events.out.tfevents.<seconds>.<host>.<process>.<number>. */
static struct rk_status *create_file(struct tensorboard *tb, const char *dir)
{
    char host[HOST_BYTES] = "localhost";

    (void)gethostname(host, sizeof(host) - 1);
    for (int i = 0; i < NAME_ATTEMPTS; i++) {
        rk_free(tb->path);
        tb->path = rk_format("%s/events.out.tfevents.%010lld.%s.%ld.%d", dir,
                             (long long)(rk_time_unix_ns() / 1000000000), host, (long)getpid(), i);
        tb->fd = open(tb->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (tb->fd >= 0 || errno != EEXIST)
            break;
    }
    return tb->fd >= 0 ? NULL : rk_file_errno("cannot create", tb->path);
}

static void close_tensorboard(void *state)
{
    struct tensorboard *tb = state;

    if (tb->fd >= 0)
        close(tb->fd);
    rk_free(tb->path);
    rk_free(tb);
}

static struct rk_status *open_tensorboard(void **state, const struct rk_logger_config *config)
{
    const char *chosen = rk_env("TENSORBOARD_DIR");
    char *dir = chosen && *chosen ? rk_strdup(chosen) : rk_path_join(config->run_dir, "tensorboard");
    struct tensorboard *tb = rk_calloc(1, sizeof(*tb));
    struct rk_str records = {0};
    struct rk_status *st;

    tb->fd = -1;
    tb->begins_again = config->begins_again;
    *state = NULL;
    RK_TRY_GOTO(st, rk_make_dirs(dir), out);
    RK_TRY_GOTO(st, create_file(tb, dir), out);
    rk_tb_version(&records, wall_time());
    RK_TRY_GOTO(st, put(tb, &records), out);
    *state = tb;
    tb = NULL;
out:
    if (tb)
        close_tensorboard(tb);
    rk_free(dir);
    return st;
}

static struct rk_status *begin(void *state, int64_t first_step, int64_t total_steps)
{
    struct tensorboard *tb = state;
    struct rk_str records = {0};

    (void)total_steps;
    if (first_step <= 1 && !tb->begins_again)
        return NULL;
    rk_tb_session_start(&records, wall_time(), first_step <= 1 ? 0 : first_step);
    return put(tb, &records);
}

static struct rk_status *log_step(void *state, int64_t step, const struct rk_json *metrics)
{
    struct rk_str records = {0};

    rk_tb_scalars(&records, wall_time(), step, metrics);
    return put(state, &records);
}

/* As a code block: text of a model must not be rendered as markup. */
static void append_block(struct rk_str *out, const char *title, const char *text)
{
    rk_str_appendf(out, "**%s**\n\n    ", title);
    for (; *text; text++)
        rk_str_append_bytes(out, *text == '\n' ? "\n    " : text, *text == '\n' ? 5 : 1);
    rk_str_append(out, "\n\n");
}

static struct rk_status *log_samples(void *state, int64_t step, const struct rk_samples *samples)
{
    struct rk_str text = {0}, records = {0};
    char *tag;

    if (strcmp(samples->tag, RK_SAMPLES_VAL) != 0)
        return NULL;
    for (int64_t i = 0; i < samples->count; i++) {
        const struct rk_sample *sample = &samples->items[i];

        rk_str_appendf(&text, "### sample %lld: score %.6g\n\n", (long long)i + 1, sample->score);
        append_block(&text, "input", sample->input);
        append_block(&text, "output", sample->output);
        if (*sample->gts)
            append_block(&text, "ground truth", sample->gts);
    }
    tag = rk_format("%s/text_summary", samples->tag);
    rk_tb_text(&records, wall_time(), step, tag, rk_str_text(&text));
    rk_free(tag);
    rk_str_fini(&text);
    return put(state, &records);
}

const struct rk_logger_ops rk_logger_tensorboard = {
    .name = "tensorboard",
    .open = open_tensorboard,
    .begin = begin,
    .log = log_step,
    .log_samples = log_samples,
    .close = close_tensorboard,
};
