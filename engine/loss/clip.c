/* The keys clip_ratio, clip_ratio_low, clip_ratio_high and clip_ratio_c. */
#include "engine/loss/loss_internal.h"

const struct rk_knob rk_clip_knobs[RK_NUM_CLIP_KNOBS] = {
    RK_CLIP_KNOBS(RK_KNOB_ROW, struct rk_clip_config, , )};

struct rk_status *rk_clip_check(void *config)
{
    struct rk_clip_config *clip = config;

    if (isnan(clip->clip_ratio_low))
        clip->clip_ratio_low = clip->clip_ratio;
    if (isnan(clip->clip_ratio_high))
        clip->clip_ratio_high = clip->clip_ratio;
    return NULL;
}
