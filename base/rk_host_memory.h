/* The host's memory, as one process of it may use it. `root` is put in front of the paths below /proc and
 * /sys: "", or a directory of a test. */
#ifndef RK_HOST_MEMORY_H
#define RK_HOST_MEMORY_H

#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* What this process can still take: of what the host has available, and of what the limits of its control
 * groups leave. UINT64_MAX when nothing is known. */
uint64_t rk_host_free_bytes(const char *root);
#define RK_HOST_MEMORY_DOMAIN_BYTES 17
/* A name for all that the value above depends on: host, control groups. Processes with the same name take
 * from the same memory. "" when it is unknown. */
void rk_host_memory_domain(const char *root, char out[RK_HOST_MEMORY_DOMAIN_BYTES]);
/* What it has touched of its own; 0 when unknown. */
uint64_t rk_host_resident_bytes(const char *root);

RK_END_DECLS

#endif
