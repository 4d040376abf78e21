/* The bytes of calls.rec. Little-endian, without padding.
 *
 *   file     "rankdrec", format version u32, 0 u32
 *   entry    struct rk_recording_frame, then meta (JSON text), message, tensors
 *
 * `crc32c` covers the frame up to it and the rest of the entry, continued from the checksum of the previous
 * entry (0 for the first): changed, removed, moved or foreign entries are detected. */
#ifndef RK_RECORDING_INTERNAL_H
#define RK_RECORDING_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "dispatch/rk_recording.h"
#include "proto/limits.h"

#define RK_RECORDING_FILE_MAGIC  "rankdrec"
#define RK_RECORDING_FRAME_MAGIC 0x4e454b52u /* "RKEN" */
#define RK_RECORDING_META_BYTES  (1u << 20)

struct rk_recording_file_head {
    char magic[8];
    uint32_t version, reserved;
};

struct rk_recording_frame {
    uint32_t magic, kind;
    uint64_t number; /* from 1 */
    uint32_t meta_bytes, message_bytes;
    uint64_t tensor_bytes;
    uint32_t head_crc32c; /* of the members above: sizes are valid only with it */
    uint32_t crc32c;
};

_Static_assert(sizeof(struct rk_recording_file_head) == 16, "defined by the format");
_Static_assert(sizeof(struct rk_recording_frame) == 40, "defined by the format");
_Static_assert(offsetof(struct rk_recording_frame, crc32c) == 36, "defined by the format");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are written in their memory layout");

/* Checksum of an object without its member "checksum", as in manifests of checkpoints. */
uint32_t rk_recording_json_checksum(const struct rk_json *json);

#endif
