/* Scores of a reward model: from responses to its tokens, and from its numbers to scores. */
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "rl/data/messages.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

#define SCORE "rm_score" /* reported with the score of a response */

/* --- texts in the model's own tokens --- */

/* The messages of the prompt, and the response as the assistant's message. */
static struct rk_json *conversation(const struct rk_dataset_row *row, const struct rk_reward_item *item)
{
    struct rk_json *messages = rk_json_new_array(), *answer = rk_json_new_object();

    for (int64_t i = 0; i < rk_json_count(row->messages); i++)
        rk_json_append(messages, rk_json_retain(rk_json_at(row->messages, i)));
    rk_json_set(answer, "role", rk_json_new_string("assistant"));
    rk_json_set(answer, "content", rk_json_new_string_bytes(item->solution_str, item->solution_bytes));
    rk_json_append(messages, answer);
    return messages;
}

static struct rk_status *render(struct rk_str *out, const struct rk_flow_reward_model *model,
                                const struct rk_dataset_row *row, const struct rk_reward_item *item)
{
    struct rk_json *messages = conversation(row, item);
    const struct rk_chat_args args = {.messages = messages, .now_s = model->now_s};
    struct rk_status *st = rk_chat_render(model->chat, &args, out);

    rk_json_free(messages);
    return st;
}

struct rk_status *rk_flow_reward_text(struct rk_tokenizer_ids *out, const struct rk_flow_reward_model *model,
                                      const struct rk_dataset_row *row, const struct rk_reward_item *item)
{
    bool is_chat = row->messages != NULL;
    struct rk_str text = {0};
    struct rk_status *st = NULL;

    if (is_chat) {
        st = render(&text, model, row, item);
    } else {
        rk_str_append_bytes(&text, row->prompt, row->prompt_bytes);
        rk_str_append_bytes(&text, item->solution_str, item->solution_bytes);
    }
    if (!st) /* a template writes its special tokens itself */
        st = rk_tokenizer_encode(model->tokenizer, rk_str_text(&text), text.bytes, !is_chat, out);
    if (!st && out->count == 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "the text has no tokens");
    rk_str_fini(&text);
    return st;
}

/* A batch of the texts, padded on the right to the longest. */
static struct rk_status *collate(struct rk_batch **out, const struct rk_tokenizer_ids *texts,
                                 int64_t num_rows)
{
    int64_t shape[2] = {num_rows, 1};
    void *ids, *mask, *positions;

    for (int64_t row = 0; row < num_rows; row++)
        shape[1] = RK_MAX(shape[1], texts[row].count);
    RK_TRY(rk_batch_create(out, num_rows));
    RK_TRY(rk_batch_add_dense(*out, "input_ids", RK_DTYPE_I64, 2, shape, &ids));
    RK_TRY(rk_batch_add_dense(*out, "attention_mask", RK_DTYPE_I64, 2, shape, &mask));
    RK_TRY(rk_batch_add_dense(*out, "position_ids", RK_DTYPE_I64, 2, shape, &positions));
    for (int64_t row = 0; row < num_rows; row++) {
        for (int64_t i = 0; i < texts[row].count; i++) {
            ((int64_t *)ids)[row * shape[1] + i] = texts[row].items[i];
            ((int64_t *)mask)[row * shape[1] + i] = 1;
            ((int64_t *)positions)[row * shape[1] + i] = i;
        }
    }
    return NULL;
}

/* Texts that are too long are truncated at the end, as in verl. */
static void truncate_texts(struct rk_tokenizer_ids *texts, int64_t num_rows, int64_t max_length)
{
    int64_t num_cut = 0;

    for (int64_t row = 0; row < num_rows; row++) {
        num_cut += texts[row].count > max_length;
        texts[row].count = RK_MIN(texts[row].count, max_length);
    }
    if (num_cut > 0)
        RK_WARN("%lld of %lld texts of the reward model are longer than " RK_JOB_REWARD_MODEL
                "max_length=%lld tokens and are truncated at the end",
                (long long)num_cut, (long long)num_rows, (long long)max_length);
}

static struct rk_status *encode(struct rk_batch **out, struct rk_flow_context *ctx,
                                const struct rk_flow_scores *scores,
                                const struct rk_dataset_row *const *prompts)
{
    int64_t num_rows = scores->num_rows;
    struct rk_tokenizer_ids *texts = rk_flow_scratch(ctx, (size_t)num_rows, sizeof(*texts));
    struct rk_status *st = NULL;

    for (int64_t row = 0; row < num_rows && !st; row++) {
        st = rk_flow_reward_text(&texts[row], &rk_flow_prompt_inputs(ctx->inputs)->reward_model, prompts[row],
                                 &scores->items[row]);
        if (st)
            st = RK_WRAP(st, "text of response %lld for the reward model", (long long)row);
    }
    if (!st) {
        truncate_texts(texts, num_rows, rk_job_reward_max_length(ctx->job));
        st = collate(out, texts, num_rows);
    }
    for (int64_t row = 0; row < num_rows; row++)
        rk_free(texts[row].items);
    return st;
}

/* --- scores --- */

static struct rk_status *make_batch(struct rk_batch **out, struct rk_flow_context *ctx,
                                    const struct rk_batch *batch, const struct rk_flow_scores *scores,
                                    const struct rk_dataset_row *const *prompts)
{
    int64_t num_padded;

    *out = NULL;
    if (rk_flow_prompt_inputs(ctx->inputs)->reward_model.tokenizer)
        RK_TRY(encode(out, ctx, scores, prompts));
    else
        RK_TRY(rk_flow_select(out, batch, "compute_rm_score", NULL));
    return rk_flow_pad(out, &num_padded, rk_flow_num_replicas(ctx, RK_ROLE_REWARD));
}

struct rk_status *rk_flow_run_rm_score(struct rk_driver_result *result, struct rk_flow_context *ctx,
                                       const struct rk_batch *texts)
{
    int64_t num_rows = rk_batch_num_rows(texts), shape[2];
    int64_t *seqlens = rk_flow_scratch(ctx, (size_t)num_rows, sizeof(*seqlens));
    const struct rk_flow_pass pass = {
        .role = "reward",
        .method = "compute_rm_score",
        .micro = rk_job_reward_micro(ctx->job),
        .batch = texts,
        .num_rows = num_rows,
        .seqlens = seqlens,
        .options = rk_json_new_object(),
    };
    const void *mask;
    struct rk_status *st = rk_batch_get_dense(texts, "attention_mask", RK_DTYPE_I64, 2, shape, &mask);

    if (st) {
        rk_json_free(pass.options);
        return st;
    }
    rk_flow_count_marks(seqlens, mask, num_rows, shape[1], shape[1]);
    return rk_flow_run_pass(ctx, &pass, result);
}

/* Beside a function's score the model's is added to it. */
static struct rk_status *add_scores(struct rk_flow_scores *scores, const struct rk_flow_context *ctx,
                                    const struct rk_batch *result)
{
    double coef = rk_config_real(ctx->job, RK_JOB_REWARD_MODEL "coef");
    const void *data;
    int64_t count;

    RK_TRY(rk_batch_get_dense(result, "rm_scores", RK_DTYPE_F32, 1, &count, &data));
    if (count < scores->num_rows)
        return RK_FAIL(RK_INTERNAL, "compute_rm_score returned %lld scores, expected %lld", (long long)count,
                       (long long)scores->num_rows);
    for (int64_t row = 0; row < scores->num_rows; row++) {
        struct rk_reward_result *to = &scores->results[row];
        double score = (double)((const float *)data)[row];

        if (!isfinite(score))
            return RK_FAIL_REASON(RK_ABORTED, "NON_FINITE", "rm_scores of row %lld is %g", (long long)row,
                                  score);
        if (!rk_flow_has_score(to))
            continue;
        if (rk_flow_prompt_inputs(ctx->inputs)->reward)
            rk_flow_keep_score(to);
        else
            to->extra = rk_json_new_object();
        to->score += coef * score;
        rk_json_set(to->extra, SCORE, rk_json_new_real(score));
    }
    return NULL;
}

struct rk_status *rk_flow_add_rm_scores(struct rk_flow_scores *scores, struct rk_flow_context *ctx,
                                        const struct rk_batch *batch,
                                        const struct rk_dataset_row *const *prompts)
{
    struct rk_driver_result result = {0};
    struct rk_batch *texts = NULL;
    struct rk_status *st;

    RK_ASSERT(scores->num_rows > 0);
    st = make_batch(&texts, ctx, batch, scores, prompts);
    if (!st)
        st = rk_flow_run_rm_score(&result, ctx, texts);
    if (!st)
        st = add_scores(scores, ctx, result.batch);
    rk_driver_result_fini(&result);
    rk_batch_destroy(texts);
    return st;
}
