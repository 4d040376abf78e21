/* proto: the wire. Umbrella over the topic headers of this module. */
#ifndef RK_PROTO_H
#define RK_PROTO_H

#include "proto/limits.h"
#include "proto/rk_messages.h"
#include "proto/rk_methods.h"
#include "proto/rk_rpcs.h"
#include "proto/rk_stream.h"

#endif
