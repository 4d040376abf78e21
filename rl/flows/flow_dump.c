/* Responses of a step with their scores and log-probs as JSON Lines, with verl's members. */
#include "rl/flows/flow_dump_internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"
#include "rl/flows/steps_internal.h"

struct rk_status *rk_dump_open(struct rk_dump *out, const char *dir, int64_t step)
{
    *out = (struct rk_dump){.step = step, .path = rk_format("%s/%lld.jsonl", dir, (long long)step)};
    out->temp_path = rk_format("%s.tmp", out->path);
    RK_TRY(rk_make_dirs(dir));
    out->file = fopen(out->temp_path, "we");
    return out->file ? NULL : rk_file_errno("cannot create", out->temp_path);
}

static struct rk_json *make_line(const struct rk_dump *dump, const struct rk_dump_row *row)
{
    const struct rk_reward_item *item = row->item;
    struct rk_json *line = rk_json_new_object();

    rk_json_set(line, "input", rk_json_new_string_bytes(item->prompt, item->prompt_bytes));
    rk_json_set(line, "output", rk_json_new_string_bytes(item->solution_str, item->solution_bytes));
    rk_json_set(line, "gts", rk_reward_truth(item));
    rk_json_set(line, "score",
                rk_flow_has_score(row->result) ? rk_json_new_real(row->result->score) : rk_json_new_null());
    rk_json_set(line, "step", rk_json_new_int(dump->step));
    if (row->is_validation)
        rk_json_set(line, "reward", rk_json_retain(rk_json_find(line, "score")));
    if (!row->result->extra) /* verl's name for a plain score */
        rk_json_set(line, "acc", rk_json_retain(rk_json_find(line, "score")));
    for (void *it = row->result->extra ? rk_json_iter(row->result->extra) : NULL; it;
         it = rk_json_iter_next(row->result->extra, it))
        rk_json_set(line, rk_json_iter_key(it), rk_json_retain(rk_json_iter_value(it)));
    rk_json_set(line, "uid", rk_json_new_string(row->uid));
    return line;
}

/* The ids and log-probs of the response's tokens, with the digits that a float needs. */
static void append_tokens(struct rk_str *text, const struct rk_dump_row *row)
{
    const char *separator = "";

    rk_str_append(text, ",\"response_ids\":[");
    for (int64_t i = 0; i < row->width; i++) {
        if (!row->mask[i])
            continue;
        rk_str_appendf(text, "%s%lld", separator, (long long)row->ids[i]);
        separator = ",";
    }
    rk_str_append(text, "],\"rollout_log_probs\":[");
    separator = "";
    for (int64_t i = 0; i < row->width; i++) {
        if (!row->mask[i])
            continue;
        rk_str_appendf(text, "%s%.9g", separator, (double)row->log_probs[i]);
        separator = ",";
    }
    rk_str_append(text, "]}\n");
}

struct rk_status *rk_dump_append(struct rk_dump *dump, const struct rk_dump_row *row)
{
    struct rk_json *line = make_line(dump, row);
    char *json = rk_json_dump(line, 0, false);
    struct rk_str text = {0};
    bool is_written;

    rk_str_append_bytes(&text, json, strlen(json) - 1); /* without the brace */
    append_tokens(&text, row);
    is_written = fwrite(text.text, 1, text.bytes, dump->file) == text.bytes;
    rk_str_fini(&text);
    rk_free(json);
    rk_json_free(line);
    return is_written ? NULL : rk_file_errno("cannot write", dump->temp_path);
}

struct rk_status *rk_dump_finish(struct rk_dump *dump)
{
    FILE *file = dump->file;

    dump->file = NULL;
    if (fclose(file) != 0)
        return rk_file_errno("cannot write", dump->temp_path);
    if (rename(dump->temp_path, dump->path) != 0)
        return rk_file_errno("cannot rename to", dump->path);
    rk_free(dump->temp_path);
    dump->temp_path = NULL;
    return NULL;
}

void rk_dump_fini(struct rk_dump *dump)
{
    if (dump->file)
        fclose(dump->file);
    if (dump->temp_path)
        (void)unlink(dump->temp_path);
    rk_free(dump->path);
    rk_free(dump->temp_path);
    *dump = (struct rk_dump){0};
}

struct rk_status *rk_flow_dumps_check(const struct rk_config *job)
{
    static const char *const keys[] = {"trainer.rollout_data_dir", "trainer.validation_data_dir"};

    for (size_t i = 0; i < RK_ARRAY_LEN(keys); i++) {
        const char *dir = rk_config_string(job, keys[i]);
        struct rk_status *st = dir ? rk_make_dirs(dir) : NULL;

        if (!st && dir && access(dir, W_OK) != 0)
            st = rk_file_errno("cannot write to", dir);
        if (st)
            return RK_WRAP(st, "%s", keys[i]);
    }
    return NULL;
}

struct rk_status *rk_dump_find_columns(struct rk_dump_columns *out, const struct rk_batch *batch)
{
    int64_t shape[2], mask_shape[2], log_probs_shape[2];
    const void *ids, *mask, *log_probs;

    RK_TRY(rk_batch_get_dense(batch, "responses", RK_DTYPE_I64, 2, shape, &ids));
    RK_TRY(rk_batch_get_dense(batch, "attention_mask", RK_DTYPE_I64, 2, mask_shape, &mask));
    RK_TRY(rk_batch_get_dense(batch, "rollout_log_probs", RK_DTYPE_F32, 2, log_probs_shape, &log_probs));
    if (mask_shape[1] < shape[1] || log_probs_shape[1] != shape[1])
        return RK_FAIL(RK_INTERNAL,
                       "responses have %lld columns, attention_mask %lld, rollout_log_probs %lld",
                       (long long)shape[1], (long long)mask_shape[1], (long long)log_probs_shape[1]);
    *out = (struct rk_dump_columns){.width = shape[1],
                                    .stride = mask_shape[1],
                                    .ids = ids,
                                    .mask = (const int64_t *)mask + (mask_shape[1] - shape[1]),
                                    .log_probs = log_probs};
    return NULL;
}

void rk_dump_set_tokens(struct rk_dump_row *line, const struct rk_dump_columns *columns, int64_t row)
{
    line->width = columns->width;
    line->ids = columns->ids + row * columns->width;
    line->mask = columns->mask + row * columns->stride;
    line->log_probs = columns->log_probs + row * columns->width;
}

/* --- the responses of a training step --- */

static bool dumps(const struct rk_flow_context *ctx)
{
    return !rk_config_is_null(ctx->job, "trainer.rollout_data_dir");
}

/* The row of each (prompt, session) of the batch. */
static struct rk_status *find_rows(const struct rk_flow_context *ctx, int64_t *row_of)
{
    const void *index, *session;

    RK_TRY(rk_batch_get_dense(ctx->batch, "index", RK_DTYPE_I64, 1, NULL, &index));
    RK_TRY(rk_batch_get_dense(ctx->batch, "session", RK_DTYPE_I64, 1, NULL, &session));
    for (int64_t row = 0; row < ctx->num_rows; row++)
        row_of[((const int64_t *)index)[row] * ctx->num_samples + ((const int64_t *)session)[row]] = row;
    return NULL;
}

static struct rk_status *append_rows(struct rk_dump *dump, const struct rk_flow_context *ctx,
                                     const int64_t *row_of)
{
    struct rk_dump_row line = {0};
    struct rk_dump_columns columns;

    RK_TRY(rk_dump_find_columns(&columns, ctx->batch));
    for (int64_t i = 0; i < ctx->num_rows; i++) {
        char *uid = rk_format("%lld-%lld_%lld_0", (long long)ctx->step, (long long)(i / ctx->num_samples),
                              (long long)(i % ctx->num_samples));
        struct rk_status *st;

        line.item = &rk_flow_scores_of(ctx)->items[row_of[i]];
        line.result = &rk_flow_scores_of(ctx)->results[row_of[i]];
        line.uid = uid;
        rk_dump_set_tokens(&line, &columns, row_of[i]);
        st = rk_dump_append(dump, &line);
        rk_free(uid);
        RK_TRY(st);
    }
    return NULL;
}

static struct rk_status *dump(struct rk_flow_context *ctx)
{
    int64_t *row_of = rk_calloc((size_t)ctx->num_rows, sizeof(*row_of));
    struct rk_dump dump;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_dump_open(&dump, rk_config_string(ctx->job, "trainer.rollout_data_dir"), ctx->step),
                out);
    RK_TRY_GOTO(st, find_rows(ctx, row_of), out);
    RK_TRY_GOTO(st, append_rows(&dump, ctx, row_of), out);
    st = rk_dump_finish(&dump);
out:
    rk_dump_fini(&dump);
    rk_free(row_of);
    return st ? RK_WRAP(st, "trainer.rollout_data_dir") : NULL;
}

const struct rk_flow_step rk_step_dump = {"dump", "dump_rollout_generations", dumps, dump};
