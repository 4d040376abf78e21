/* From the tokens of a batch to scored texts. */
#include "driver-cli/flows/flows_internal.h"

#include <string.h>

#include "base/rk_assert.h"
#include "driver-cli/driver_internal.h"

/* Responses of a batch: ids[row * width], and marks of the real ones at mask[row * stride]. */
struct responses {
    const int64_t *ids, *mask;
    int64_t width, stride;
};

static void *scratch(struct rk_flow_context *ctx, size_t count, size_t elem_bytes)
{
    void *memory = rk_arena_calloc(ctx->arena, count, elem_bytes);

    RK_ASSERT(memory);
    return memory;
}

static bool is_interrupted(void *user)
{
    return atomic_load(&((struct rk_driver *)user)->interrupts) > 0;
}

static struct rk_status *find_responses(struct responses *out, const struct rk_batch *batch)
{
    int64_t num_rows = rk_batch_num_rows(batch), response_shape[2], attention_shape[2];
    const void *ids, *mask;

    RK_TRY(rk_batch_get_dense(batch, "responses", RK_DTYPE_I64, 2, response_shape, &ids));
    RK_TRY(rk_batch_get_dense(batch, "attention_mask", RK_DTYPE_I64, 2, attention_shape, &mask));
    if (attention_shape[1] < response_shape[1])
        return RK_FAIL(RK_INTERNAL, "attention_mask has %lld columns, fewer than the %lld of responses",
                       (long long)attention_shape[1], (long long)response_shape[1]);
    RK_ASSERT(response_shape[0] == num_rows);
    RK_ASSERT(attention_shape[0] == num_rows);
    out->ids = ids;
    out->width = response_shape[1];
    out->stride = attention_shape[1];
    out->mask = (const int64_t *)mask + (out->stride - out->width);
    return NULL;
}

/* Decodes the real tokens of a row's response; returns their number. */
static int64_t decode(const struct rk_flow_context *ctx, const struct responses *responses, int64_t row,
                      int32_t *ids, struct rk_str *out)
{
    int64_t count = 0;

    for (int64_t i = 0; i < responses->width; i++) {
        if (responses->mask[row * responses->stride + i])
            ids[count++] = (int32_t)responses->ids[row * responses->width + i];
    }
    rk_str_clear(out);
    rk_tokenizer_decode(ctx->inputs->tokenizer, ids, count, true, out);
    return count;
}

static char *arena_text(struct rk_flow_context *ctx, const struct rk_str *text)
{
    char *copy = scratch(ctx, text->bytes + 1, 1);

    memcpy(copy, rk_str_text(text), text->bytes);
    return copy;
}

static void make_items(struct rk_flow_scores *out, struct rk_flow_context *ctx,
                       const struct responses *responses, const struct rk_dataset_row *const *prompts)
{
    int32_t *ids = scratch(ctx, (size_t)responses->width, sizeof(*ids));
    struct rk_str text = {0};

    for (int64_t row = 0; row < out->num_rows; row++) {
        out->lengths[row] = decode(ctx, responses, row, ids, &text);
        out->items[row] = (struct rk_reward_item){
            .data_source = prompts[row]->data_source,
            .prompt = prompts[row]->prompt,
            .solution_str = arena_text(ctx, &text),
            .solution_bytes = text.bytes,
            .ground_truth = prompts[row]->ground_truth,
            .extra_info = prompts[row]->extra_info,
        };
    }
    rk_str_fini(&text);
}

struct rk_status *rk_flow_score(struct rk_flow_scores *out, struct rk_flow_context *ctx,
                                const struct rk_batch *batch, const struct rk_dataset_row *const *prompts)
{
    struct rk_reward_watch watch = {.is_cancelled = is_interrupted, .user = ctx->driver};
    int64_t num_rows = rk_batch_num_rows(batch);
    struct responses responses;

    *out = (struct rk_flow_scores){0};
    RK_TRY(find_responses(&responses, batch));
    out->items = scratch(ctx, (size_t)num_rows, sizeof(*out->items));
    out->lengths = scratch(ctx, (size_t)num_rows, sizeof(*out->lengths));
    out->results = scratch(ctx, (size_t)num_rows, sizeof(*out->results));
    out->num_rows = num_rows;
    make_items(out, ctx, &responses, prompts);
    return rk_reward_score(ctx->inputs->reward, out->items, num_rows, out->results, &watch);
}

void rk_flow_scores_fini(struct rk_flow_scores *scores)
{
    rk_reward_results_fini(scores->results, scores->num_rows);
    *scores = (struct rk_flow_scores){0};
}

bool rk_flow_has_score(const struct rk_reward_result *result)
{
    return result->outcome == RK_REWARD_SCORED;
}
