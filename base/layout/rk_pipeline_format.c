/* A timeline as text. The shortest step that takes any time gets the width of the longest label and one
 * character more; all positions are begin and end times on that scale, rounded. */
#include "base/layout/rk_pipeline.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define MIN_COLUMNS 16

static int format_label(char *label, size_t bytes, const struct rk_pipeline_timeline *timeline,
                        struct rk_pipeline_step step)
{
    char kind = step.kind == RK_PIPELINE_FORWARD ? 'F' : 'B';

    return timeline->vpp > 1 ? snprintf(label, bytes, "%c%d.%d", kind, step.micro_batch, step.chunk)
                             : snprintf(label, bytes, "%c%d", kind, step.micro_batch);
}

/* Characters for one unit of time; 0 when no step takes any. */
static double find_scale(const struct rk_pipeline_timeline *timeline)
{
    double shortest = INFINITY;
    int longest = 0;

    for (int64_t i = 0; i < timeline->pp * timeline->num_steps; i++) {
        double cost = timeline->end[i] - timeline->begin[i];
        char label[32];
        int bytes = format_label(label, sizeof(label), timeline, timeline->steps[i]);

        longest = RK_MAX(longest, bytes);
        if (cost > 0 && cost < shortest)
            shortest = cost;
    }
    return isfinite(shortest) ? (longest + 1) / shortest : 0;
}

static void draw_stage(char *line, int32_t columns, const struct rk_pipeline_timeline *timeline,
                       int32_t stage, double scale)
{
    memset(line, '.', (size_t)columns);
    for (int64_t i = 0; i < timeline->num_steps; i++) {
        int64_t at = stage * timeline->num_steps + i;
        double begin = round(timeline->begin[at] * scale), end = round(timeline->end[at] * scale);
        char label[32];
        int bytes = format_label(label, sizeof(label), timeline, timeline->steps[at]);

        for (double x = begin; x < end && x < columns; x++) {
            int64_t offset = (int64_t)(x - begin);
            char fill = timeline->steps[at].kind == RK_PIPELINE_FORWARD ? '-' : '=';

            line[(int64_t)x] = offset < bytes ? label[offset] : fill;
        }
    }
}

void rk_pipeline_format(struct rk_str *out, const struct rk_pipeline_timeline *timeline, int32_t max_columns)
{
    double scale = find_scale(timeline), width = ceil(timeline->total * scale);
    int prefix = snprintf(NULL, 0, "stage %d  ", timeline->pp - 1);
    int32_t room = RK_MAX(max_columns, MIN_COLUMNS + prefix) - prefix;
    int32_t columns = width < room ? (int32_t)width : room;
    char *line = rk_malloc((size_t)columns + 1);

    RK_ASSERT(timeline->pp > 0);
    for (int32_t stage = 0; stage < timeline->pp; stage++) {
        int bytes;

        draw_stage(line, columns, timeline, stage, scale);
        bytes = snprintf(NULL, 0, "stage %d", stage);
        rk_str_appendf(out, "stage %d%*s%.*s\n", stage, prefix - bytes, "", columns, line);
    }
    if (columns < width)
        rk_str_appendf(out, "(shown: the first %.0f%% of the time)\n", 100.0 * columns / width);
    rk_free(line);
}
