/* engine: collectives, models, training, rollout. Umbrella over the topic headers of this module. */
#ifndef RK_ENGINE_H
#define RK_ENGINE_H

#include "engine/rk_checkpoint.h"
#include "engine/rk_comm.h"
#include "engine/rk_loss.h"
#include "engine/rk_memory.h"
#include "engine/rk_model.h"
#include "engine/rk_param.h"
#include "engine/rk_reshard.h"
#include "engine/rk_rollout.h"
#include "engine/rk_train.h"

#endif
