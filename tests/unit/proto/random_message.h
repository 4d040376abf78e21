/* Random valid messages of any type, made through protobuf-c's descriptors only. */
#ifndef RK_TEST_RANDOM_MESSAGE_H
#define RK_TEST_RANDOM_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "base/rk_arena.h"
#include "base/rk_rng.h"

/* Allocated in the arena. Every field has a value that is not its default, with probability `density`. */
ProtobufCMessage *random_message(const ProtobufCMessageDescriptor *descriptor, struct rk_rng *rng,
                                 struct rk_arena *arena, double density);

#endif
