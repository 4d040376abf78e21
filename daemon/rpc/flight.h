/* The flight recorder of this daemon: its file, and the RPC DumpFlightRecorder. Thread L. */
#ifndef RK_DAEMON_FLIGHT_H
#define RK_DAEMON_FLIGHT_H

#include "daemon/rpc/rpc.h"

#define RK_FLIGHT_DUMPS_MAX 4 /* at a time: each is kept in memory until it is sent */

struct rk_settings;

/* The file to which the recorder is written when the process fails: "flight-SLOT.json" in flight.dir. A file
 * of an earlier process is renamed to "flight-SLOT.previous.json". */
void rk_flight_start(const struct rk_settings *settings);

extern const struct rk_rpc_handler rk_rpc_dump_flight_recorder;

#endif
