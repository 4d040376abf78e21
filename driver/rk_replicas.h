/* The remaining replicas of a group that has lost daemons. */
#ifndef RK_REPLICAS_H
#define RK_REPLICAS_H

#include <stdint.h>

#include "base/rk_array.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_str.h"
#include "driver/rk_driver.h"

/* Daemons that together hold the role's weights once. */
struct rk_replica {
    int32_t dp_rank; /* in the mesh that the group had */
    struct rk_mesh_spec mesh;
    RK_ARRAY(const char *) addresses; /* borrowed from the driver; in rank order of `mesh` alone */
};

struct rk_replicas {
    RK_ARRAY(struct rk_replica) items;
};

/* The replicas of the role whose daemons all answer, from the last mesh that workers[num_workers]
 * report; `missing` gets a line for each incomplete one. None when no worker has the role. */
struct rk_status *rk_replicas_find(struct rk_replicas *out, const char *role,
                                   const struct rk_driver_worker *workers, int32_t num_workers,
                                   struct rk_str *missing) RK_NODISCARD;
void rk_replicas_fini(struct rk_replicas *replicas);

#endif
