/* The host's memory from the view of one process. `root` is prepended to the paths below /proc and
 * /sys: "", or a directory of a test. */
#ifndef RK_HOST_MEMORY_H
#define RK_HOST_MEMORY_H

#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* Memory that this process can still allocate: the minimum of the host's available memory and of the limits
 * of its control groups. UINT64_MAX when it is unknown. */
uint64_t rk_host_free_bytes(const char *root);
/* Memory of the host that is in use, by all processes; 0 when it is unknown. */
uint64_t rk_host_used_bytes(const char *root);
#define RK_HOST_MEMORY_DOMAIN_BYTES 17
/* An identifier of everything on which the value above depends: host, control groups. Processes with the same
 * identifier share the same memory. "" when it is unknown. */
void rk_host_memory_domain(const char *root, char out[RK_HOST_MEMORY_DOMAIN_BYTES]);
/* Resident memory of the process; 0 if unknown. */
uint64_t rk_host_resident_bytes(const char *root);

RK_END_DECLS

#endif
