/* An external program: links librankd_driver only and uses what its header declares. */
#include <stdio.h>
#include <string.h>

#include "driver/rk_driver.h"

#define NOBODY "unix:/does/not/exist.sock"

static int fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    return 1;
}

int main(void)
{
    struct rk_driver_config config = {.struct_size = sizeof(config)};
    struct rk_driver_worker worker;
    struct rk_driver *driver;
    struct rk_hosts hosts;
    struct rk_arena *arena;
    struct rk_status *st;

    if (rk_hosts_parse(&hosts, NOBODY))
        return fail("the address was refused");
    config.addresses = (const char *const *)hosts.addresses;
    config.num_addresses = hosts.count;
    if (rk_driver_open(&driver, &config))
        return fail("the driver did not open");
    arena = rk_arena_create(4096, 0);
    rk_driver_get_status(driver, arena, &worker);
    if (rk_status_code(worker.error) != RK_UNAVAILABLE)
        return fail("a daemon that is not there should be UNAVAILABLE");
    if (!strstr(rk_status_message(worker.error), "worker 0 (" NOBODY ", rank 0): UNAVAILABLE"))
        return fail(rk_status_message(worker.error));
    rk_status_free(worker.error);
    st = rk_driver_call(driver, &(struct rk_driver_call_args){.role = "actor", .method = "get_mesh_info"},
                        &(struct rk_driver_result){0});
    if (rk_status_code(st) != RK_FAILED_PRECONDITION)
        return fail("a call without a claim should be FAILED_PRECONDITION");
    rk_status_free(st);
    rk_arena_destroy(arena);
    rk_driver_close(driver);
    rk_hosts_fini(&hosts);
    return 0;
}
