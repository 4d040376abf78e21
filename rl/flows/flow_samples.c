/* The responses of a step that are shown to users. */
#include <string.h>

#include "base/rk_assert.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_loggers.h"

#define TRAIN_SAMPLES 4

/* A copy in which NUL characters are spaces. */
static char *without_nul(struct rk_arena *arena, const char *text, size_t bytes)
{
    char *copy = rk_arena_calloc(arena, bytes + 1, 1);

    RK_ASSERT(copy);
    for (size_t i = 0; i < bytes; i++)
        copy[i] = text[i] ? text[i] : ' ';
    return copy;
}

struct rk_sample rk_flow_sample(struct rk_arena *arena, const struct rk_reward_item *item,
                                const struct rk_reward_result *result)
{
    return (struct rk_sample){.input = without_nul(arena, item->prompt, item->prompt_bytes),
                              .output = without_nul(arena, item->solution_str, item->solution_bytes),
                              .gts = item->ground_truth,
                              .score = result->score};
}

/* The best, the worst, and rows in between, each once. */
static int64_t choose_rows(int64_t rows[TRAIN_SAMPLES], const struct rk_flow_scores *scores)
{
    int64_t wanted[TRAIN_SAMPLES] = {0, 0, scores->num_rows / 3, 2 * scores->num_rows / 3}, count = 0;

    for (int64_t row = 0; row < scores->num_rows; row++) {
        if (scores->results[row].score > scores->results[wanted[0]].score)
            wanted[0] = row;
        if (scores->results[row].score < scores->results[wanted[1]].score)
            wanted[1] = row;
    }
    for (int i = 0; i < TRAIN_SAMPLES; i++) {
        bool is_new = wanted[i] < scores->num_rows;

        for (int64_t j = 0; j < count; j++)
            is_new &= rows[j] != wanted[i];
        if (is_new)
            rows[count++] = wanted[i];
    }
    return count;
}

static struct rk_status *show_samples(struct rk_flow_context *ctx)
{
    struct rk_sample items[TRAIN_SAMPLES];
    struct rk_samples samples = {.tag = RK_SAMPLES_TRAIN, .items = items};
    const struct rk_flow_scores *scores = rk_flow_scores_of(ctx);
    int64_t rows[TRAIN_SAMPLES];

    if (!ctx->sink.on_samples)
        return NULL;
    samples.count = choose_rows(rows, scores);
    for (int64_t i = 0; i < samples.count; i++)
        items[i] = rk_flow_sample(ctx->arena, &scores->items[rows[i]], &scores->results[rows[i]]);
    ctx->sink.on_samples(ctx->sink.user, ctx->step, &samples);
    return NULL;
}

const struct rk_flow_step rk_step_samples = {"samples", NULL, NULL, show_samples};
