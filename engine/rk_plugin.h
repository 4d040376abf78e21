/* Plug-ins: device backends and collectives in shared libraries, loaded when a device asks for them, so that
 * one binary serves machines with and without an accelerator.
 *
 * The library of device "cuda:0" is librankd_cuda.so. It exports rk_plugin_get() and takes rankd's own
 * functions from the program that loads it: both must be built from the same headers. It stays loaded. */
#ifndef RK_PLUGIN_H
#define RK_PLUGIN_H

#include <stdint.h>

#include "engine/rk_comm.h"
#include "kernels/rk_device.h"

RK_BEGIN_DECLS

#define RK_PLUGIN_ABI 2 /* of struct rk_plugin itself */

/* Static storage of the plug-in. */
struct rk_plugin {
    uint32_t abi;                       /* RK_PLUGIN_ABI */
    const char *interface;              /* RK_INTERFACE: what the headers were that it was compiled with */
    const struct rk_device_ops *device; /* its name is the part of the device name before ':' */
    const struct rk_comm_ops *comm;     /* collectives over that device's memory; NULL: none */
};

/* What a plug-in exports, and nothing else. */
const struct rk_plugin *rk_plugin_get(void);

/* Makes the backend of `device_name` known: nothing to do for "cpu" and for what is loaded. `path` names the
 * library; NULL or "" looks for it in ../lib of the program's folder, where an installation has it, and
 * beside the program. FAILED_PRECONDITION, reason PLUGIN_MISSING, with the places searched;
 * FAILED_PRECONDITION, reason PLUGIN_BROKEN, with the path when the library is cut off, does not load, is of
 * another build or lacks something. Engine thread only, like the tables. */
struct rk_status *rk_plugin_load(const char *device_name, const char *path) RK_NODISCARD;
/* The same for one that is linked into the program: its device counts as loaded. */
struct rk_status *rk_plugin_add(const struct rk_plugin *plugin) RK_NODISCARD;

RK_END_DECLS

#endif
