/* The one symbol that librankd_cuda.so exports. */
#include "engine/comm/rk_nccl.h"
#include "engine/rk_plugin.h"
#include "generated/rk_interface.h"
#include "kernels/cuda/rk_cuda.h"

const struct rk_plugin *rk_plugin_get(void)
{
    static const struct rk_plugin plugin = {
        .abi = RK_PLUGIN_ABI,
        .interface = RK_INTERFACE,
        .device = &rk_cuda_device_ops,
        .comm = &rk_comm_nccl_ops,
    };

    return &plugin;
}
