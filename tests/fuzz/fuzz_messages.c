/* Goal: received bytes of every message are rejected or give a struct whose packed bytes unpack to the same
 * struct again, within a bounded multiple of their size. The first byte selects the message. */
#include "tests/fuzz/fuzz.h"

#include "base/rk_arena.h"
#include "base/rk_assert.h"
#include "proto/rk_messages.h"

#include <string.h>

#define ARENA_FACTOR                                                           \
    128 /* upper bound: the struct of an empty list entry takes two bytes in a \
         * message */
#define ARENA_EXTRA_BYTES (16 << 10)

#define X(name)                                                                                \
    static void check_##name(struct rk_arena *arena, const uint8_t *data, size_t bytes)        \
    {                                                                                          \
        struct rk_##name message, again;                                                       \
        struct rk_str packed = {0}, repacked = {0};                                            \
        struct rk_status *st = rk_unpack_##name(&message, arena, data, bytes);                 \
                                                                                               \
        RK_ASSERT(rk_arena_used_bytes(arena) <= bytes * ARENA_FACTOR + ARENA_EXTRA_BYTES);     \
        if (st) {                                                                              \
            RK_ASSERT(rk_status_code(st) == RK_INVALID_ARGUMENT ||                             \
                      rk_status_code(st) == RK_RESOURCE_EXHAUSTED);                            \
            rk_status_free(st);                                                                \
            return;                                                                            \
        }                                                                                      \
        rk_pack_##name(&packed, &message);                                                     \
        RK_ASSERT(rk_unpack_##name(&again, arena, packed.text, packed.bytes) == NULL);         \
        rk_pack_##name(&repacked, &again);                                                     \
        RK_ASSERT(packed.bytes == repacked.bytes);                                             \
        RK_ASSERT(packed.bytes == 0 || memcmp(packed.text, repacked.text, packed.bytes) == 0); \
        rk_str_fini(&packed);                                                                  \
        rk_str_fini(&repacked);                                                                \
    }
RK_MESSAGE_TABLE(X)
#undef X

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static void (*const checks[])(struct rk_arena * arena, const uint8_t *data, size_t bytes) = {
#define X(name) check_##name,
        RK_MESSAGE_TABLE(X)
#undef X
    };
    struct rk_arena *arena;

    if (bytes == 0)
        return 0;
    arena = rk_arena_create(4096, 0);
    checks[data[0] % RK_ARRAY_LEN(checks)](arena, data + 1, bytes - 1);
    rk_arena_destroy(arena);
    return 0;
}
