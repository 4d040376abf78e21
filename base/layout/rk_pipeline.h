/* Pipeline arithmetic: layers of each stage, the order in which a stage computes, its receives and sends.
 * Pure; the engine executes these lists and the driver shows them.
 *
 * A pipeline has pp stages of vpp chunks (vpp > 1: interleaved). A micro-batch passes chunk 0 of stages
 * 0..pp-1, then chunk 1 of stages 0..pp-1, and so on: position of (stage, chunk) = chunk * pp + stage. The
 * first position also has the embedding, the last one the head and the loss. Forward results go to the next
 * position, gradients to the one before. Forward and backward messages use separate channels: only
 * then do the k-th send and the k-th receive of every (source, destination, direction) match.
 *
 * Sources: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
 * Megatron-LM", arXiv:2104.04473, section 2.2; Megatron-LM's layer offsets. The lists are asserted in
 * tests/unit/base/test_rk_pipeline_schedule.c. */
#ifndef RK_PIPELINE_H
#define RK_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"
#include "base/rk_str.h"

RK_BEGIN_DECLS

#define RK_PIPELINE_MAX_STAGES        1024
#define RK_PIPELINE_MAX_CHUNKS        256
#define RK_PIPELINE_MAX_LAYERS        65536
#define RK_PIPELINE_MAX_MICRO_BATCHES (1 << 20)

/* ---- layers: rk_pipeline_layers.c ---- */

/* Options that make a layer table. Without any, every (stage, chunk) has num_layers / (pp * vpp) layers. */
struct rk_pipeline_spec {
    int32_t num_layers;
    int32_t pp;                                   /* stages; 0 means 1 */
    int32_t vpp;                                  /* chunks of each stage; 0 means 1 */
    int32_t num_layers_in_first_pipeline_stage;   /* all chunks together; 0: unset */
    int32_t num_layers_in_last_pipeline_stage;    /* likewise */
    bool account_for_embedding_in_pipeline_split; /* the embedding counts as one layer of the first chunk */
    bool account_for_loss_in_pipeline_split;      /* head and loss count as one layer of the last chunk */
};

/* Layers [layer_begin, layer_end) of one chunk of one stage. */
struct rk_pipeline_chunk {
    int32_t layer_begin, layer_end;
    bool has_embed; /* first chunk of the first stage */
    bool has_head;  /* last chunk of the last stage: final norm, head, loss */
};

struct rk_pipeline_place {
    int32_t stage, chunk;
};

struct rk_pipeline; /* the layer table, immutable */

/* Makes the table. INVALID_ARGUMENT names the sizes that do not fit and the nearest layout that does. A chunk
 * without layers is refused, except where an account_for_* option leaves one the embedding or the head only.
 */
struct rk_status *rk_pipeline_create(struct rk_pipeline **out,
                                     const struct rk_pipeline_spec *spec) RK_NODISCARD;
/* An explicit table: chunks [pp * vpp], chunk c of stage s at [s * vpp + c]; has_embed and has_head are
 * derived, chunks may be empty. INVALID_ARGUMENT when layers overlap or are missing. */
struct rk_status *rk_pipeline_create_explicit(struct rk_pipeline **out, int32_t num_layers, int32_t pp,
                                              int32_t vpp,
                                              const struct rk_pipeline_chunk *chunks) RK_NODISCARD;
void rk_pipeline_destroy(struct rk_pipeline *pipeline); /* NULL is a no-op */
/* The layout nearest to what `spec` asks for that rk_pipeline_create accepts; false when there is none (no
 * layers). Keeps pp while there are enough layers, then vpp, then an even split of the layers. */
bool rk_pipeline_nearest(const struct rk_pipeline_spec *spec, struct rk_pipeline_spec *nearest);

int32_t rk_pipeline_num_layers(const struct rk_pipeline *pipeline);
int32_t rk_pipeline_num_stages(const struct rk_pipeline *pipeline);
int32_t rk_pipeline_num_chunks(const struct rk_pipeline *pipeline); /* of each stage */
struct rk_pipeline_chunk rk_pipeline_get_chunk(const struct rk_pipeline *pipeline, int32_t stage,
                                               int32_t chunk);
/* Layers of all chunks of a stage. */
int32_t rk_pipeline_num_stage_layers(const struct rk_pipeline *pipeline, int32_t stage);
/* 0 <= layer < num_layers. */
struct rk_pipeline_place rk_pipeline_find_layer(const struct rk_pipeline *pipeline, int32_t layer);

/* ---- schedules: rk_pipeline_schedule.c ---- */

/* Parameters of a schedule. vpp <= 1: 1F1B; vpp > 1: interleaved 1F1B in groups of `group_size`
 * micro-batches; forward_only: forwards in the same order, no backwards. */
struct rk_pipeline_schedule {
    int32_t pp;  /* 0 means 1 */
    int32_t vpp; /* 0 means 1 */
    int32_t num_micro_batches;
    int32_t group_size; /* 0: pp; not used when vpp <= 1 */
    bool forward_only;
};

typedef enum rk_pipeline_kind {
    RK_PIPELINE_FORWARD,
    RK_PIPELINE_BACKWARD,
    RK_PIPELINE_KIND_COUNT
} rk_pipeline_kind_t;

struct rk_pipeline_step {
    rk_pipeline_kind_t kind;
    int32_t micro_batch, chunk;
};

/* The number of micro-batches, at least `num_micro_batches`, that a training schedule of these sizes takes:
 * interleaved ones a multiple of the group size, others any. */
int32_t rk_pipeline_round_micro_batches(int32_t num_micro_batches, int32_t pp, int32_t vpp,
                                        int32_t group_size);
/* INVALID_ARGUMENT: sizes out of range; interleaved: pp == 1, pp > group_size, or, when training,
 * group_size > num_micro_batches or a last group that is shorter than pp. The functions below require a
 * schedule that passes. */
struct rk_status *rk_pipeline_schedule_check(const struct rk_pipeline_schedule *schedule) RK_NODISCARD;
/* Steps of each stage. */
int64_t rk_pipeline_schedule_num_steps(const struct rk_pipeline_schedule *schedule);
/* Writes what `stage` computes, in order, to steps [num_steps]. */
void rk_pipeline_schedule_steps(const struct rk_pipeline_schedule *schedule, int32_t stage,
                                struct rk_pipeline_step *steps);
/* The largest number of chunk activations that are kept at once: forwards whose backward is still to come.
 * Of a list without backwards 0, as nothing is kept. 1F1B: min(num_micro_batches, pp - stage); interleaved:
 * min(num_micro_batches * vpp, 2 * (pp - 1 - stage) + (vpp - 1) * group_size + 1). */
int64_t rk_pipeline_max_live(const struct rk_pipeline_step *steps, int64_t num_steps);

/* Source of a step's input and destination of its output: a stage and its chunk, the same micro-batch
 * and kind. False when there is no message: the embedding makes the first input, the loss the first
 * gradient, and the gradient of the embedding is the last. */
bool rk_pipeline_recv_from(const struct rk_pipeline_schedule *schedule, int32_t stage,
                           struct rk_pipeline_step step, struct rk_pipeline_place *peer);
bool rk_pipeline_send_to(const struct rk_pipeline_schedule *schedule, int32_t stage,
                         struct rk_pipeline_step step, struct rk_pipeline_place *peer);

/* ---- messages: rk_pipeline_messages.c ---- */

/* A message that a stage sends or receives. Messages of the same before_step are exchanged together, after
 * the messages of earlier ones. A message begins when the stage has computed the preceding step. If `step`
 * receives it, that is the only later step that waits for its end. */
struct rk_pipeline_message {
    int64_t
        before_step; /* index of the stage's step that it precedes; the number of steps: after the last one */
    bool is_send;
    struct rk_pipeline_step step; /* of this stage: that made it, or that it is the input of */
    int32_t peer_stage;
};
/* All messages of a stage in the order in which it exchanges them; the caller owns *out (rk_free). Groups of
 * sends and receives that progress together, one before each step, never form a circular wait,
 * and between two stages the k-th send matches the k-th receive on one channel for both directions.
 * INVALID_ARGUMENT: the schedule. */
struct rk_status *rk_pipeline_messages_create(struct rk_pipeline_message **out, int64_t *num_messages,
                                              const struct rk_pipeline_schedule *schedule,
                                              int32_t stage) RK_NODISCARD;

/* ---- simulation: rk_pipeline_simulate.c ---- */

/* Durations in any one unit, finite and not negative. */
struct rk_pipeline_costs {
    const double *forward;       /* [pp * vpp], chunk c of stage s at [s * vpp + c] */
    const double *backward;      /* [pp * vpp]; NULL when forward_only */
    const double *micro_batches; /* [num_micro_batches] factor of both for each micro-batch; NULL: 1 */
    double transfer;             /* from a complete send to the data's arrival */
};

/* Models of message exchange. Sends are FIFO in all of them. */
typedef enum rk_pipeline_exchange {
    /* A send waits for nothing; a step waits for its input. */
    RK_PIPELINE_BUFFERED,
    /* Rendezvous, forward and backward messages independent of each other and of computing: for each
     * direction, the send of one step and the receive of the next step of that kind are one group, and groups
     * follow each other. As fast as buffered sends when group_size == pp; larger groups may deadlock. */
    RK_PIPELINE_DIRECTIONS,
    /* Rendezvous, one line: the send after a step and the receive before the next one are one group, and
     * computing waits for it. For vpp <= 1; interleaved schedules deadlock. */
    RK_PIPELINE_PAIRED,
    RK_PIPELINE_EXCHANGE_COUNT
} rk_pipeline_exchange_t;

/* When every step begins and ends; caller owns it. */
struct rk_pipeline_timeline {
    int32_t pp, vpp;
    int64_t num_steps;              /* of each stage */
    struct rk_pipeline_step *steps; /* [pp, num_steps], in each stage's order */
    double *begin, *end;            /* [pp, num_steps] */
    double total;                   /* end of the last step */
    double busy;                    /* computing time of all stages together */
    double bubble; /* idle / busy time of all stages: (pp - 1) / (vpp * num_micro_batches) when
                      all chunks take equally long and transfers no time */
};

/* Runs a schedule in model time. INVALID_ARGUMENT: schedule or costs; INTERNAL when the stages wait for each
 * other (deadlock), naming one of them. Memory: about 150 bytes for each step of each stage. */
struct rk_status *rk_pipeline_simulate(struct rk_pipeline_timeline **out,
                                       const struct rk_pipeline_schedule *schedule,
                                       const struct rk_pipeline_costs *costs,
                                       rk_pipeline_exchange_t exchange) RK_NODISCARD;
void rk_pipeline_timeline_destroy(struct rk_pipeline_timeline *timeline); /* NULL is a no-op */

/* Appends a picture, a line for each stage and time to the right: "F3--" is the forward of micro-batch 3,
 * "B3==" its backward, "F3.1" with the chunk when vpp > 1, dots are idle time. Lines end after max_columns
 * characters; a note below says how much of the time is shown then. */
void rk_pipeline_format(struct rk_str *out, const struct rk_pipeline_timeline *timeline, int32_t max_columns);

RK_END_DECLS

#endif
