/* Hand-written HTTP/2, for clients that no library would produce: frames as bytes, over a TCP connection to
 * the loopback address of a daemon. The daemon's replies are not checked. */
#ifndef RK_TEST_H2_RAW_H
#define RK_TEST_H2_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_str.h"

RK_BEGIN_DECLS

#define H2_FRAME_BYTES 9

#define H2_DATA          0
#define H2_HEADERS       1
#define H2_PRIORITY      2
#define H2_RST_STREAM    3
#define H2_SETTINGS      4
#define H2_PING          6
#define H2_GOAWAY        7
#define H2_WINDOW_UPDATE 8
#define H2_CONTINUATION  9

#define H2_END_STREAM  1
#define H2_ACK         1
#define H2_END_HEADERS 4

/* A connected socket to 127.0.0.1; -1 when the connection is refused or reset. */
int h2_connect(const char *address);
/* Appends a frame. `payload` may be NULL: zeros. */
void h2_frame(struct rk_str *out, int type, int flags, uint32_t stream, const void *payload, size_t bytes);
/* Appends a client's first bytes: the preface and empty SETTINGS. */
void h2_greeting(struct rk_str *out);
/* Appends the header block of a gRPC call of that path; `authorization` (its value) may be NULL. */
void h2_call_block(struct rk_str *out, const char *path, const char *authorization);
/* A HEADERS frame with that block; flags without END_HEADERS. */
void h2_open_call(struct rk_str *out, uint32_t stream, const char *path, const char *authorization);
/* Sends all bytes, waiting up to `timeout_ms` for buffer space; false if the peer has closed or the time is
 * over. Discards received data. */
bool h2_send(int fd, const struct rk_str *bytes, int timeout_ms);
/* Waits until the peer has closed; false if it has not within `timeout_ms`. */
bool h2_wait_closed(int fd, int timeout_ms);

RK_END_DECLS

#endif
