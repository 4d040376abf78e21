/* A fake daemon under the control of a test, which can also violate the protocol. It answers GetStatus (one
 * role, actor, over `world_size` ranks), AcquireLease, KeepAlive, Cancel and ReleaseLease correctly; the test
 * defines Execute and Configure. */
#ifndef RK_TEST_FAKE_DAEMON_H
#define RK_TEST_FAKE_DAEMON_H

#include "proto/rk_proto.h"

struct fake_daemon;
struct fake_call;

/* Runs on a separate thread for every Execute and ends with fake_finish. */
typedef void (*fake_script_t)(struct fake_call *call);

struct fake_daemon *fake_daemon_create(const char *address, int32_t rank, int32_t world_size);
void fake_daemon_destroy(struct fake_daemon *daemon);
/* Applies to subsequent calls. */
void fake_daemon_set_script(struct fake_daemon *daemon, fake_script_t script);
/* fake_daemon_set_script for Configure, after the request has been read. */
void fake_daemon_set_configure(struct fake_daemon *daemon, fake_script_t script);
/* The values of the last Execute. */
uint64_t fake_daemon_seq(struct fake_daemon *daemon);
bool fake_daemon_was_committed(struct fake_daemon *daemon);
bool fake_daemon_was_cancelled(struct fake_daemon *daemon);

/* --- for scripts --- */
/* The next message from the driver: HEADER, COMMIT, CANCEL or NONE at the end. */
rk_execute_request_kind_t fake_receive(struct fake_call *call);
void fake_send(struct fake_call *call, const struct rk_execute_response *response);
void fake_send_bytes(struct fake_call *call, const void *data, size_t bytes);
void fake_send_chunk(struct fake_call *call, uint64_t offset, const void *data, size_t bytes);
/* Accepted with a hash of 32 bytes, each `fill`. */
void fake_accept(struct fake_call *call, uint8_t fill);
void fake_finish(struct fake_call *call, rk_code_t code, const char *message);
/* Refused with a code and a reason. */
void fake_refuse(struct fake_call *call, rk_code_t code, const char *reason, const char *message);

#endif
