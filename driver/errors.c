/* The message of a failed call: the rank where the failure began, not the ranks that failed because of it. */
#include "driver/driver_internal.h"

#include <string.h>

/* Causes before their consequences. A lost daemon is always the cause; a rank's own failure
 * comes next; then ranks that only lost a peer (their message names it); last those that were
 * cancelled. */
enum blame {
    BLAME_LOST,
    BLAME_OWN,
    BLAME_WAITED,
    BLAME_PEER_LOST,
    BLAME_STOPPED,
};

static enum blame blame_of(const struct rk_rank_error *error)
{
    rk_code_t code = rk_status_code(error->status);
    const char *reason = rk_status_reason(error->status);

    if (error->is_lost)
        return BLAME_LOST;
    if (code == RK_CANCELLED || strcmp(reason, "COMM_ABORTED") == 0)
        return BLAME_STOPPED;
    if (code == RK_ABORTED)
        return strcmp(reason, "PEER_LOST") == 0 ? BLAME_PEER_LOST : BLAME_WAITED;
    return code == RK_DEADLINE_EXCEEDED ? BLAME_WAITED : BLAME_OWN;
}

struct rk_status *rk_error_of_worker(struct rk_status *st, int32_t rank, const char *address)
{
    const char *reason = rk_status_reason(st);
    struct rk_str text = {0};
    struct rk_status *named;

    rk_str_appendf(&text, "worker %d (%s, rank %d): %s%s%s: %s", rank, address, rank,
                   rk_code_name(rk_status_code(st)), *reason ? " " : "", reason, rk_status_message(st));
    named = rk_status_from_wire(rk_status_code(st), reason, rk_str_text(&text));
    rk_str_fini(&text);
    rk_status_free(st);
    return named;
}

int32_t rk_error_find_root(const struct rk_rank_error *errors, int32_t count)
{
    int32_t root = -1;

    for (int32_t i = 0; i < count; i++) {
        enum blame mine, best;

        if (!errors[i].status)
            continue;
        if (root < 0) {
            root = i;
            continue;
        }
        mine = blame_of(&errors[i]);
        best = blame_of(&errors[root]);
        if (mine < best || (mine == best && errors[i].order < errors[root].order))
            root = i;
    }
    return root;
}

static void append_others(struct rk_str *text, const struct rk_rank_error *errors, int32_t count,
                          int32_t root)
{
    int32_t num_others = 0;

    for (int32_t i = 0; i < count; i++) {
        if (i != root && errors[i].status)
            num_others++;
    }
    if (num_others > 0)
        rk_str_appendf(text, " (%d other rank%s ended with it)", num_others, num_others == 1 ? "" : "s");
}

/* The operation of the first rank that waited for the lost one, since the lost one cannot report its own. */
static void append_witness(struct rk_str *text, const struct rk_rank_error *errors, int32_t count)
{
    const struct rk_rank_error *witness = NULL;

    for (int32_t i = 0; i < count; i++) {
        if (errors[i].status && !errors[i].is_lost && (!witness || errors[i].order < witness->order))
            witness = &errors[i];
    }
    if (witness)
        rk_str_appendf(text, "; rank %d says: %s", witness->rank, rk_status_message(witness->status));
}

static void append_place(struct rk_str *text, int32_t rank, const char *role, const struct rk_mesh *mesh)
{
    char place[RK_MESH_PLACE_BYTES];

    if (mesh && rk_mesh_place_text(mesh, rank, place))
        rk_str_appendf(text, "; rank %d is %s of role '%s'", rank, place, role);
}

struct rk_status *rk_error_of_call(struct rk_rank_error *errors, int32_t count, const char *role,
                                   const struct rk_mesh *mesh)
{
    int32_t root = rk_error_find_root(errors, count);
    struct rk_str text = {0};
    struct rk_status *st, *named;
    bool is_lost;

    if (root < 0)
        return NULL;
    is_lost = errors[root].is_lost;
    st = rk_error_of_worker(errors[root].status, errors[root].rank, errors[root].address);
    errors[root].status = NULL;
    rk_str_append(&text, rk_status_message(st));
    append_others(&text, errors, count, root);
    append_place(&text, errors[root].rank, role, mesh);
    if (is_lost)
        append_witness(&text, errors, count);
    named = rk_status_from_wire(is_lost ? RK_ABORTED : rk_status_code(st),
                                is_lost ? "PEER_LOST" : rk_status_reason(st), rk_str_text(&text));
    rk_str_fini(&text);
    rk_status_free(st);
    for (int32_t i = 0; i < count; i++) {
        rk_status_free(errors[i].status);
        errors[i].status = NULL;
    }
    return named;
}
