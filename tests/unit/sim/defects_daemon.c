/* Deliberate defects in the daemon, linked in place of its functions (CMakeLists.txt), and a check of each
 * lease that it grants. */
#include "base/rk_time.h"
#include "daemon/lease_internal.h"
#include "daemon/requests_internal.h"
#include "tests/unit/sim/sim.h"

struct rk_status *__real_rk_requests_lookup(struct rk_request **out, const struct rk_requests *table,
                                            const void *id, const uint8_t digest[RK_SHA256_BYTES]);
struct rk_status *__wrap_rk_requests_lookup(struct rk_request **out, const struct rk_requests *table,
                                            const void *id, const uint8_t digest[RK_SHA256_BYTES]);
struct rk_status *__real_rk_lease_check_seq(const struct rk_lease *lease, uint64_t seq);
struct rk_status *__wrap_rk_lease_check_seq(const struct rk_lease *lease, uint64_t seq);
struct rk_status *__real_rk_lease_check_acquire(const struct rk_lease *lease, int64_t now_ms,
                                                const struct rk_acquire_lease_request *request);
struct rk_status *__wrap_rk_lease_check_acquire(const struct rk_lease *lease, int64_t now_ms,
                                                const struct rk_acquire_lease_request *request);
void __real_rk_lease_grant(struct rk_lease *lease, int64_t now_ms,
                           const struct rk_acquire_lease_request *request, int64_t default_ttl_ms,
                           const uint8_t id[RK_LEASE_ID_BYTES]);
void __wrap_rk_lease_grant(struct rk_lease *lease, int64_t now_ms,
                           const struct rk_acquire_lease_request *request, int64_t default_ttl_ms,
                           const uint8_t id[RK_LEASE_ID_BYTES]);

struct rk_status *__wrap_rk_requests_lookup(struct rk_request **out, const struct rk_requests *table,
                                            const void *id, const uint8_t digest[RK_SHA256_BYTES])
{
    if (sim->defect != SIM_DEFECT_NO_DEDUPE)
        return __real_rk_requests_lookup(out, table, id, digest);
    *out = NULL;
    return NULL;
}

struct rk_status *__wrap_rk_lease_check_seq(const struct rk_lease *lease, uint64_t seq)
{
    return sim->defect == SIM_DEFECT_NO_DEDUPE ? NULL : __real_rk_lease_check_seq(lease, seq);
}

struct rk_status *__wrap_rk_lease_check_acquire(const struct rk_lease *lease, int64_t now_ms,
                                                const struct rk_acquire_lease_request *request)
{
    struct rk_acquire_lease_request forced = *request;

    forced.takeover = forced.takeover || sim->defect == SIM_DEFECT_TWO_HOLDERS;
    return __real_rk_lease_check_acquire(lease, now_ms, &forced);
}

/* Checks that an active lease is granted to another driver only by a takeover. */
void __wrap_rk_lease_grant(struct rk_lease *lease, int64_t now_ms,
                           const struct rk_acquire_lease_request *request, int64_t default_ttl_ms,
                           const uint8_t id[RK_LEASE_ID_BYTES])
{
    if (rk_lease_is_live(lease, now_ms) && !request->takeover && !rk_lease_is_same_driver(lease, request))
        sim_fail("the lease of %s, which lives, was granted to %s", lease->driver_id, request->driver_id);
    __real_rk_lease_grant(lease, now_ms, request, default_ttl_ms, id);
}
