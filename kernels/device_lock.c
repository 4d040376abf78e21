/* Lock: one process per device. Two engines on one GPU would each plan with all of its memory, and
 * collectives reject a device that appears twice.
 *
 * The lock is an abstract socket address: a name in the kernel, not a file. It needs no world-writable
 * directory, works with a private /tmp, and disappears with the process in every case. Its scope is the
 * network namespace: it does not work across containers with separate networks, for which the GPU's exclusive
 * compute mode does. The socket never receives data. */
#include "kernels/device_internal.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct rk_status *rk_device_lock_take(int *out, const char *uuid)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int bytes = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "rankd-device-%s", uuid);
    socklen_t address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
    struct rk_status *st;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    _Static_assert(sizeof(address.sun_path) > 1 + sizeof("rankd-device-") + RK_DEVICE_UUID_BYTES,
                   "the name fits");
    if (fd < 0)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "locking %s: %s", uuid, strerror(errno));
    if (bind(fd, (const struct sockaddr *)&address, address_bytes) == 0) {
        *out = fd;
        return NULL;
    }
    st = errno == EADDRINUSE ? RK_FAIL_REASON(RK_UNAVAILABLE, "DEVICE_BUSY",
                                              "another rankd process holds %s, expected one daemon per "
                                              "device; find it with: ss -xap | grep %s",
                                              uuid, address.sun_path + 1)
                             : RK_FAIL(RK_INTERNAL, "locking %s: %s", uuid, strerror(errno));
    close(fd);
    return st;
}
