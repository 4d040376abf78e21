/* Fate of the rows of a job's files: for the console, the summary and the report. */
#include "base/rk_alloc.h"
#include "rl/flows/steps_internal.h"

/* Adds a sentence about `count` of `total` rows. */
static void add_note(struct rk_json *notes, const char *files, int64_t count, int64_t total, const char *what)
{
    struct rk_json *note;
    char *text;

    if (count == 0)
        return;
    text = rk_format("%s: %lld of %lld rows %s", files, (long long)count, (long long)total, what);
    note = rk_json_new_object();
    rk_json_set(note, "text", rk_json_new_string(text));
    rk_json_set(note, "share", rk_json_new_real((double)count / (double)total));
    rk_json_append(notes, note);
    rk_free(text);
}

static struct rk_json *counts_json(const struct rk_row_counts *counts)
{
    struct rk_json *json = rk_json_new_object();

    rk_json_set(json, "read", rk_json_new_int(counts->read));
    rk_json_set(json, "used", rk_json_new_int(counts->read - counts->overlong - counts->empty));
    rk_json_set(json, "skipped_overlong", rk_json_new_int(counts->overlong));
    rk_json_set(json, "skipped_without_answer", rk_json_new_int(counts->empty));
    rk_json_set(json, "truncated", rk_json_new_int(counts->truncated));
    return json;
}

static void add_set(struct rk_json *rows, struct rk_json *notes, const struct rk_flow_inputs *inputs,
                    const struct rk_config *job, bool is_val)
{
    const char *files = is_val ? "data.val_files" : "data.train_files";
    const struct rk_row_counts *counts = inputs->data->row_counts(inputs, is_val);
    const char *limit = inputs->data == &rk_flow_data_prompts ? "data.max_prompt_length" : "data.max_length";
    char *cut;

    if (!counts)
        return;
    rk_json_set(rows, is_val ? "val_files" : "train_files", counts_json(counts));
    cut = rk_format("are longer than %s=%lld and are skipped (data.filter_overlong_prompts)", limit,
                    (long long)rk_config_int(job, limit));
    add_note(notes, files, counts->overlong, counts->read, cut);
    rk_free(cut);
    cut = rk_format("are cut to %s=%lld (data.truncation=%s)", limit, (long long)rk_config_int(job, limit),
                    rk_config_string(job, "data.truncation"));
    add_note(notes, files, counts->truncated, counts->read, cut);
    rk_free(cut);
    cut = rk_format("are skipped: data.truncation=%s to %s=%lld leaves no token of an answer",
                    rk_config_string(job, "data.truncation"), limit, (long long)rk_config_int(job, limit));
    add_note(notes, files, counts->empty, counts->read, cut);
    rk_free(cut);
}

struct rk_json *rk_flow_rows_json(const struct rk_flow_inputs *inputs, const struct rk_config *job)
{
    struct rk_json *rows = rk_json_new_object(), *notes = rk_json_new_array();

    add_set(rows, notes, inputs, job, false);
    add_set(rows, notes, inputs, job, true);
    rk_json_set(rows, "notes", notes);
    return rows;
}

/* As in verl the last, smaller batch of an epoch is dropped. */
void rk_flow_rows_add_left_out(struct rk_json *rows, const struct rk_flow_context *ctx)
{
    bool is_shuffled = rk_config_bool(ctx->job, "data.shuffle");
    char *what =
        rk_format("do not fill a batch of data.train_batch_size=%lld and are skipped in every epoch%s",
                  (long long)ctx->num_prompts, is_shuffled ? ", different ones in each" : "");

    add_note(rk_json_find(rows, "notes"), "data.train_files", ctx->num_left_out,
             ctx->steps_per_epoch * ctx->num_prompts + ctx->num_left_out, what);
    rk_free(what);
}
