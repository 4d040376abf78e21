/* base: functions for both the wire side and the device side. Umbrella over the topic headers of this module.
 */
#ifndef RK_BASE_H
#define RK_BASE_H

#include "base/rk_alloc.h"
#include "base/rk_arena.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_crc32c.h"
#include "base/rk_dtype.h"
#include "base/rk_env.h"
#include "base/rk_fault.h"
#include "base/rk_file.h"
#include "base/rk_hash.h"
#include "base/rk_json.h"
#include "base/rk_log.h"
#include "base/rk_map.h"
#include "base/rk_random.h"
#include "base/rk_rng.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"

#endif
