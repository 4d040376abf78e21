/* Plug-ins: device backends and collectives in shared libraries, loaded when a device of theirs is opened, so
 * that one binary runs on machines with and without an accelerator.
 *
 * The library of device "cuda:0" is librankd_cuda.so. It exports rk_plugin_get() and links to rankd's
 * functions in the program that loads it: both must be built from the same headers. It stays loaded. */
#ifndef RK_PLUGIN_H
#define RK_PLUGIN_H

#include <stdint.h>

#include "engine/rk_comm.h"
#include "kernels/rk_device.h"

RK_BEGIN_DECLS

#define RK_PLUGIN_ABI 2 /* of struct rk_plugin itself */

/* What a plug-in adds; in static storage of the plug-in. */
struct rk_plugin {
    uint32_t abi;                       /* RK_PLUGIN_ABI */
    const char *interface;              /* RK_INTERFACE: fingerprint of the headers that it was compiled
                                         * with */
    const struct rk_device_ops *device; /* its name is the part of the device name before ':' */
    const struct rk_comm_ops *comm;     /* collectives over that device's memory; NULL: none */
};

/* The only symbol that a plug-in exports. */
const struct rk_plugin *rk_plugin_get(void);

/* Loads the backend of `device_name`; no-op for "cpu" and for loaded backends. `path` is the library; NULL or
 * "" searches ../lib of the program's directory, as installed, and the program's directory.
 * FAILED_PRECONDITION, reason PLUGIN_MISSING, with the places searched; FAILED_PRECONDITION, reason
 * PLUGIN_BROKEN, with the path when the library is truncated, does not load, is of another build or lacks an
 * entry. Engine thread only, like the tables. */
struct rk_status *rk_plugin_load(const char *device_name, const char *path) RK_NODISCARD;
/* Adds the rows of a plug-in that is linked into the program: its device counts as loaded. */
struct rk_status *rk_plugin_add(const struct rk_plugin *plugin) RK_NODISCARD;

RK_END_DECLS

#endif
