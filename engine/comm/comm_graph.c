/* Graphs that contain operations of a group. While a group records, its operations count for the graph and
 * not for the group; a launch is one operation of the wrapper and advances the group's sequence number by all
 * of them. So a rank that launches a graph and a rank that calls the operations one by one have equal
 * sequence numbers.
 *
 * A backend cannot release a communicator that a graph still refers to: destroying a group destroys its
 * graphs. */
#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "engine/comm/comm.h"

bool rk_comm_has_graphs(const struct rk_comm_group *group, const struct rk_device *device)
{
    return rk_device_has_graphs(device) &&
           (rk_comm_group_size(group) == 1 || group->world->ops->graph_launch);
}

struct rk_status *rk_comm_graph_begin(struct rk_comm_group *group, struct rk_stream *stream)
{
    if (rk_comm_group_size(group) == 1)
        return rk_graph_begin(stream);
    RK_ASSERT(!group->recording);
    RK_ASSERT(!group->in_batch);
    if (!group->world->ops->graph_launch)
        return RK_FAIL(RK_UNIMPLEMENTED, "collectives '%s' cannot be recorded into a graph",
                       group->world->ops->name);
    RK_TRY(rk_graph_begin(stream));
    group->recording = stream;
    group->recorded = (struct rk_comm_recorded){0};
    return NULL;
}

struct rk_status *rk_comm_graph_end(struct rk_comm_graph **out, struct rk_comm_group *group,
                                    struct rk_stream *stream)
{
    struct rk_graph *recorded = NULL;
    struct rk_comm_graph *graph;

    if (out)
        *out = NULL;
    if (rk_comm_group_size(group) > 1) {
        RK_ASSERT(group->recording == stream);
        group->recording = NULL;
    }
    RK_TRY(rk_graph_end(out ? &recorded : NULL, stream));
    if (!out)
        return NULL;
    graph = rk_calloc(1, sizeof(*graph));
    graph->stream = stream;
    graph->graph = recorded;
    if (rk_comm_group_size(group) > 1 && group->recorded.count > 0) {
        graph->group = group;
        graph->ops = group->recorded;
        graph->next = group->graphs;
        group->graphs = graph;
    }
    *out = graph;
    return NULL;
}

struct rk_status *rk_comm_graph_launch(struct rk_comm_graph *graph)
{
    struct rk_comm_group *group = graph->group;
    struct rk_status *st;
    uint64_t first_seq;

    RK_ASSERT(rk_comm_graph_is_current(graph));
    if (!group)
        return rk_graph_launch(graph->graph);
    first_seq = group->seq + 1;
    RK_TRY(rk_comm_op_begin_graph(group, graph->ops));
    st = rk_comm_op_fault(group, RK_COMM_OP_GRAPH);
    if (!st)
        st = group->world->ops->graph_launch(graph, first_seq);
    return rk_comm_op_end(group, st);
}

bool rk_comm_graph_is_current(const struct rk_comm_graph *graph)
{
    return graph->graph && rk_graph_is_current(graph->graph);
}

void rk_comm_graph_destroy(struct rk_comm_graph *graph)
{
    struct rk_comm_graph **link;

    if (!graph)
        return;
    if (graph->group) {
        for (link = &graph->group->graphs; *link != graph; link = &(*link)->next)
            RK_ASSERT(*link);
        *link = graph->next;
    }
    rk_graph_destroy(graph->graph);
    rk_free(graph);
}

void rk_comm_graphs_drop(struct rk_comm_group *group)
{
    RK_ASSERT(!group->recording);
    while (group->graphs) {
        struct rk_comm_graph *graph = group->graphs;

        group->graphs = graph->next;
        rk_graph_destroy(graph->graph);
        graph->graph = NULL;
        graph->group = NULL;
    }
}
