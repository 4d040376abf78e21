/* CRC-32C (Castagnoli; RFC 3720 appendix B.4), of checkpoint files. */
#ifndef RK_CRC32C_H
#define RK_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

/* Continues `crc` over these bytes; begin with 0. */
uint32_t rk_crc32c(uint32_t crc, const void *data, size_t bytes);
/* rk_crc32c in plain C; rk_crc32c uses the processor's instruction where there is one. */
uint32_t rk_crc32c_portable(uint32_t crc, const void *data, size_t bytes);
/* Checksum of A followed by B, from the checksums of both: parts can be summed at the same time. */
uint32_t rk_crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b);
/* Checksum and size of a whole file. Errors as of opening and reading files. */
struct rk_status *rk_crc32c_of_file(uint32_t *crc, uint64_t *bytes, const char *path) RK_NODISCARD;
/* Checksum of a part of a file. DATA_LOSS when the file ends earlier. */
struct rk_status *rk_crc32c_of_range(uint32_t *crc, const char *path, uint64_t begin,
                                     uint64_t bytes) RK_NODISCARD;

RK_END_DECLS

#endif
