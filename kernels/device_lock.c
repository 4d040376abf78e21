/* One process a device. Two engines on one GPU would each plan with all of its memory, and collectives refuse
 * a device that appears twice.
 *
 * The lock is an abstract socket address: a name that the kernel keeps, no file. It needs no directory that
 * every user's daemon may write into, a private /tmp does not split it, and it goes with the process however
 * that ends. It reaches as far as the network namespace, that is: not across containers with networks of
 * their own; the GPU's exclusive compute mode does. Nothing is ever received on the socket. */
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
    st = errno == EADDRINUSE
             ? RK_FAIL_REASON(RK_UNAVAILABLE, "DEVICE_BUSY",
                              "another rankd has %s, a device serves one daemon (who: ss -xap | grep %s)",
                              uuid, address.sun_path + 1)
             : RK_FAIL(RK_INTERNAL, "locking %s: %s", uuid, strerror(errno));
    close(fd);
    return st;
}
