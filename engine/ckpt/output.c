#include "engine/rk_model.h"

#include "base/rk_assert.h"

bool rk_output_is_writer(rk_output_t output, const struct rk_mesh_comms *mesh)
{
    switch (output) {
    case RK_OUTPUT_HF:
        return rk_comm_group_rank(rk_mesh_comms_group(mesh, RK_GROUP_ALL)) == 0;
    case RK_OUTPUT_CHECKPOINT:
        return true;
    }
    RK_ASSERT(!"unknown output");
    return false;
}
