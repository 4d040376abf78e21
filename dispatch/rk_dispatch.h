/* dispatch: the batch, the dispatch modes and the micro-batch plan. Umbrella over the topic headers of this
 * module. */
#ifndef RK_DISPATCH_H
#define RK_DISPATCH_H

#include "dispatch/rk_batch.h"
#include "dispatch/rk_modes.h"
#include "dispatch/rk_plan.h"
#include "dispatch/rk_recording.h"

#endif
