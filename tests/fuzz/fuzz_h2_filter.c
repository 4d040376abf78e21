/* Goal: no bytes of a peer make the filter miscount, and results do not depend on how they are split into
 * pieces. The first byte selects the pieces and the direction; the rest is sent by the peer. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "daemon/guard/h2_filter_internal.h"

static void check(const struct rk_h2_filter *filter)
{
    RK_ASSERT(filter->num_open >= 0);
    RK_ASSERT(filter->num_open <= RK_H2_OPEN_MAX);
    for (int i = 1; i < filter->num_open; i++)
        RK_ASSERT(filter->open[i - 1] < filter->open[i]);
    RK_ASSERT(filter->num_open == 0 || filter->open[filter->num_open - 1] <= filter->last_stream);
    RK_ASSERT(filter->block_bytes <= RK_H2_BLOCK_BYTES || filter->rule);
    RK_ASSERT(filter->controls.tokens >= 0);
}

/* Feeds pieces until the verdict is final; returns the number of bytes passed on. */
static size_t run(struct rk_h2_filter *filter, const uint8_t *data, size_t bytes, size_t piece,
                  bool is_client)
{
    rk_h2_verdict_t verdict = RK_H2_PASS;
    size_t at = 0, given = 0;

    while (verdict == RK_H2_PASS && at + given < bytes) {
        size_t passed;

        given += RK_MIN(piece, bytes - at - given);
        if (is_client)
            verdict = rk_h2_filter_client(filter, data + at, given, 0, &passed);
        else
            rk_h2_filter_server(filter, data + at, given, 0, &passed);
        RK_ASSERT(passed <= given);
        RK_ASSERT(verdict != RK_H2_CUT || (passed == 0 && filter->rule));
        at += passed;
        given -= passed;
        RK_ASSERT(verdict != RK_H2_PASS || given < RK_H2_HEAD_BYTES + 4);
        check(filter);
    }
    return verdict == RK_H2_CUT ? bytes : at; /* the number of bytes passed before depends on the pieces */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct rk_h2_shared shared[2];
    struct rk_h2_filter filters[2];
    size_t passed[2];
    bool is_client;

    if (bytes == 0)
        return 0;
    is_client = !(data[0] & 1);
    for (int i = 0; i < 2; i++) {
        rk_h2_shared_init(&shared[i], 0);
        rk_h2_filter_init(&filters[i], &shared[i], 0);
        passed[i] =
            run(&filters[i], data + 1, bytes - 1, i == 0 ? bytes : (size_t)(data[0] >> 1) + 1, is_client);
    }
    RK_ASSERT(passed[0] == passed[1]);
    RK_ASSERT(filters[0].num_open == filters[1].num_open);
    RK_ASSERT((filters[0].rule == NULL) == (filters[1].rule == NULL));
    return 0;
}
