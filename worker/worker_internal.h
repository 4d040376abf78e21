/* Private to worker/: the worker object, its roles, and the input of methods.
 *
 * Threads. E (engine) runs jobs and owns everything on the device. W (watchdog) reads the running job's
 * progress and aborts communicators. Other threads submit, cancel and take snapshots. One mutex, `lock`,
 * guards what they share; no thread holds it while working or while waiting for anything other than the
 * lock's condition. */
#ifndef RK_WORKER_INTERNAL_H
#define RK_WORKER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/rk_arena.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "engine/rk_engine.h"
#include "worker/rk_worker.h"

struct rk_method_call;

/* The meaning of a role's name. */
struct rk_role_kind {
    uint32_t bit;     /* enum rk_role_bits */
    const char *head; /* of its model: row of the engine's head table */
    bool can_train;
    bool generates;
    bool sends_weights; /* update_weights takes them from this role, and gives them to the one that generates
                         */
};

/* The weights of one model, or of several that use one buffer: the state that their roles share.
 * The role whose init_model created them owns them; other roles refer to them, and lose their models first.
 */
struct rk_weights {
    const struct rk_role_kind *owner;
    /* An optimizer step, or an update of a rollout's weights, was interrupted: the weights may be mixed.
     * init_model is needed, or update_weights for a rollout. */
    bool is_suspect;
    bool are_missing; /* of a rollout before its first update_weights */
};

/* One role of this daemon. Engine thread only. */
struct rk_role {
    const struct rk_role_kind *kind;
    char name[32];
    rk_role_state_t state;
    struct rk_mesh *mesh;              /* owned */
    struct rk_mesh_comms *comms;       /* owned; NULL while there are no communicators */
    struct rk_model *model;            /* owned; NULL in state EMPTY */
    struct rk_trainer *trainer;        /* owned; NULL: the role does not train */
    struct rk_saver *saver;            /* owned; NULL in state EMPTY */
    struct rk_rollout *rollout;        /* owned; roles that generate */
    struct rk_memory_plan memory_plan; /* planned and allocated by init_model */
    struct rk_memory_limits limits;    /* the limits of that plan */
    struct rk_model_layout layout;     /* division of its passes over the mesh */
    uint32_t offload;                  /* enum rk_model_parts that leave the device between calls */
    struct rk_weights *weights;        /* of the model; NULL in state EMPTY; may be another role's */
    bool has_gradients;                /* of forward_backward, for optim_step */
};

/* Source and destination of update_weights. Set when the world is configured. */
struct rk_weight_update {
    struct rk_role *source, *destination; /* borrowed; NULL: no role with a mesh does that */
    struct rk_reshard_link *link;         /* owned; NULL without source, without destination or without
                                           * communicators */
};

/* A job that waits. */
struct rk_queued_job {
    struct rk_job *job;
    char *cancel_reason; /* owned; NULL: not cancelled */
    bool is_removed;     /* cancelled, and never begins */
};

/* The job on thread E, as others see it. */
struct rk_running_job {
    struct rk_job *job; /* NULL when idle */
    int64_t since_ns, last_tick_ns;
    char phase[32];
    uint64_t progress_done, progress_total;
    uint64_t seen_collectives; /* of W: to detect progress of collectives */
    char *cancel_reason;       /* owned; set once the job was cancelled */
    struct rk_status *verdict; /* owned; of W, the reason why it ended the job */
    int64_t verdict_ns;
};

struct rk_worker {
    /* Fixed after create. */
    char *device_name, *plugin, *listen_host;
    char **ckpt_roots;              /* owned, NULL-terminated */
    struct rk_worker_config config; /* pointers in it are the ones above */
    pthread_t engine_thread, watchdog_thread;

    /* Engine thread. */
    struct rk_device *device;
    struct rk_stream *stream;
    void *agree_scratch;    /* RK_AGREE_BYTES on the device */
    struct rk_trace *trace; /* owned; NULL: no profile is being made */
    uint64_t flight_phase;  /* of the running job, in the flight recorder; 0: none */
    struct rk_comm_endpoint *endpoint;
    struct rk_role roles[RK_LIMIT_ROLES];
    int32_t num_roles;
    struct rk_weight_update weight_update;
    int32_t rank, world_size;

    /* Guarded by lock. `world` is written by E only, so E reads it without. */
    pthread_mutex_t lock;
    pthread_cond_t wakes_engine, wakes_watchdog;
    bool is_started, is_stopping, is_engine_done;
    const char *flight_reason;      /* of W: reason to write the flight recorder; NULL: none */
    struct rk_status *start_status; /* result of opening the device, for create */
    RK_ARRAY(struct rk_queued_job) queue;
    struct rk_running_job running;
    struct rk_comm_world *world;
    bool is_world_aborted;
    struct rk_worker_snapshot snapshot; /* what E published last */

    atomic_bool is_cancel_requested; /* of the running job; polled between micro-batches and decode steps */
    pthread_t engine_thread_id;      /* written by E before anything else runs on it */
};

#define RK_ASSERT_ENGINE_THREAD(worker) RK_ASSERT(pthread_equal(pthread_self(), (worker)->engine_thread_id))

/* "actor.update_actor", "configure", ... for messages. */
#define RK_JOB_LABEL_BYTES 96
const char *rk_job_label(const struct rk_job *job, char buf[RK_JOB_LABEL_BYTES]);
const char *rk_job_call_label(const struct rk_job_call *job, char buf[RK_JOB_LABEL_BYTES]);

/* --- watchdog.c --- */
void *rk_watchdog_main(void *worker);
/* Ends running and future collectives, here and through closed connections on the peers. Needs the lock. */
void rk_worker_abort_locked(struct rk_worker *worker, const char *reason);
/* rk_worker_abort_locked because this rank failed: its peers report that. Takes the lock. */
void rk_worker_give_up(struct rk_worker *worker, const char *reason);

/* --- snapshot.c --- */
/* Marks the worker as failed until a restart; the first failure (a literal) is kept. Needs the lock. */
void rk_worker_fail_locked(struct rk_worker *worker, const char *failure, const char *text);
/* Adds the operations of that world. `snapshot` belongs to the caller, or needs the lock. */
void rk_worker_add_collectives(struct rk_worker_snapshot *snapshot, const struct rk_comm_world *world);
/* Makes the state of roles, world and device visible. Engine thread. */
void rk_worker_publish(struct rk_worker *worker);
void rk_worker_tick(struct rk_worker *worker, const char *phase, uint64_t done, uint64_t total);

/* --- weights.c. Engine thread. --- */
struct rk_weights *rk_weights_create(const struct rk_role *owner);
void rk_weights_destroy(struct rk_weights *weights); /* NULL is a no-op */
/* Whether the role's weights are its own; false without any. */
bool rk_role_owns_weights(const struct rk_role *role);
/* Whether `user` has a model that uses the weights of `owner`, another role. */
bool rk_role_uses_weights_of(const struct rk_role *user, const struct rk_role *owner);
/* Determines the worker's roles between which update_weights moves weights. The link need not exist. */
void rk_weight_update_bind(struct rk_worker *worker);

/* --- roles.c. Engine thread. --- */
const struct rk_role_kind *rk_role_kind_find(const char *name);           /* NULL when unknown */
struct rk_role *rk_role_find(struct rk_worker *worker, const char *name); /* NULL when not configured */
/* EMPTY -> AWAKE; the caller has set the model and its weights. */
void rk_role_wake(struct rk_worker *worker, struct rk_role *role);
/* Frees the model, and the models of roles that use its weights: any state -> EMPTY. */
void rk_role_drop_model(struct rk_worker *worker, struct rk_role *role);
/* Frees the role's mesh and communicators too. The model must have been dropped or moved away. */
void rk_role_fini(struct rk_role *role);
/* Names of the configured roles for messages; rk_free it. */
char *rk_role_names(const struct rk_worker *worker);

/* --- world.c. Engine thread. --- */
struct rk_status *rk_world_open_endpoint(struct rk_worker *worker, struct rk_job_endpoint *job) RK_NODISCARD;
struct rk_status *rk_world_configure(struct rk_worker *worker,
                                     const struct rk_job_configure *job) RK_NODISCARD;
/* Frees communicators and the world; keeps models. */
void rk_world_teardown(struct rk_worker *worker);
/* Frees models, communicators, the world and the endpoint. */
void rk_world_drop_all(struct rk_worker *worker);

struct rk_method_call;

/* --- residency.c: loads parts of models for a call, and offloads them after it. Engine thread. --- */

/* Whether parts of the role's model leave the device between calls. The same on all ranks of its mesh. */
bool rk_role_moves(const struct rk_role *role);
/* Loads the parts that the method needs, and allocates the host memory for offloading. RESOURCE_EXHAUSTED. */
struct rk_status *rk_method_call_onload(struct rk_method_call *call) RK_NODISCARD;
/* Offloads the parts that leave the device between calls. */
struct rk_status *rk_method_call_offload(struct rk_method_call *call) RK_NODISCARD;
/* Maximum memory that another role offloads between calls, and will need again. */
uint64_t rk_worker_away_bytes(const struct rk_worker *worker, const struct rk_role *role);

/* --- call.c: one method call --- */
struct rk_method_call {
    struct rk_worker *worker;
    struct rk_role *role;
    struct rk_job_call *job;
    struct rk_arena *arena; /* host memory of the call */
    struct rk_engine_hooks hooks;
    /* The ranks that take part; NULL: the ranks of the role's mesh, or this rank alone. */
    struct rk_comm_group *group;
    /* Peers may wait in a collective for this rank: when the method fails here alone, the world must be
     * aborted. */
    bool peers_wait;
};

struct rk_status *rk_method_call_run(struct rk_worker *worker, struct rk_job_call *job) RK_NODISCARD;
/* Collective over the call's ranks; takes `st`, the status of this rank so far. NULL on all ranks when all
 * passed NULL; otherwise all fail, and none waits for another. */
struct rk_status *rk_method_call_agree(struct rk_method_call *call, struct rk_status *st) RK_NODISCARD;
/* rk_method_call_agree of methods that use collectives from here on: afterwards peers_wait is true. */
struct rk_status *rk_method_call_begin(struct rk_method_call *call, struct rk_status *st) RK_NODISCARD;
/* Collective: CANCELLED on all ranks of the mesh when one rank was cancelled. */
struct rk_status *rk_method_call_check_cancel(struct rk_method_call *call) RK_NODISCARD;
void rk_method_call_progress(struct rk_method_call *call, const char *phase, uint64_t done, uint64_t total);
/* This rank is the one of its replica whose metrics count. */
bool rk_method_call_is_collector(const struct rk_method_call *call);
/* Peak memory of the device, and the number of allocations of the role's passes beyond its plan. */
void rk_method_call_add_memory_metrics(struct rk_method_call *call);

/* Zeroed memory in the arena of the call, or NULL; rk_method_call_no_memory says so. */
void *rk_method_call_alloc(struct rk_method_call *call, int64_t count, size_t elem_bytes);
struct rk_status *rk_method_call_no_memory(const struct rk_method_call *call) RK_NODISCARD;

/* --- registry.c --- */
typedef struct rk_status *(*rk_method_fn_t)(struct rk_method_call *call);
rk_method_fn_t rk_method_handler(rk_method_id_t id);

/* --- bridge.c: padded columns and packed micro-batches --- */

/* The sequences of a batch: input_ids, attention_mask, position_ids [B, S] and responses [B, R], checked as a
 * whole at the start, so that packing cannot fail. The log-prob of response token j comes from the position
 * before it. Without the column responses R is S where there is a mask, else 0. */
struct rk_rows {
    int64_t num_rows, seq_columns, num_responses; /* B, S, R */
    int64_t num_tokens;                           /* real ones of all rows: room of the packed arrays */
    const int64_t *input_ids, *attention_mask, *position_ids;
    const int64_t *responses;  /* NULL: not a separate column */
    const int64_t *label_mask; /* [B, R]: which response tokens get a label */
    int64_t label_stride;
    int32_t *tokens, *positions, *labels, *cu_seqlens;
    int64_t *cells;          /* [num_tokens]: index into [B, R] of the label's cell, -1 without a label */
    struct rk_packed packed; /* the micro-batch packed last */
    struct {
        const uint16_t *column; /* routed_experts: [B, S, per_token]; NULL: not used */
        int64_t per_token, num_experts_per_tok;
        uint16_t *packed; /* of a micro-batch; NULL: passes are not given the column */
    } routes;
};

/* Choices of the routers in the passes of a mini-batch, and the number of places in which the column differs.
 */
struct rk_route_record {
    uint16_t *chosen; /* packed: [tokens of the mini-batch, per_token] */
    int64_t *first;   /* the first token of each micro-batch */
    int64_t per_token, num_experts_per_tok;
    int64_t num_tokens, num_other_tokens, num_other_layers; /* compared; of these, different */
};

/* A teacher's most likely ids, and their log-probs, in the batch of a call. */
struct rk_id_columns {
    const int32_t *ids;
    const float *log_probs;
};

/* Borrows the batch of the call; the packed arrays come from its arena. mask_name names the column [B, R] of
 * label marks; NULL marks every real response token. INVALID_ARGUMENT names column, row and value. */
struct rk_status *rk_rows_open(struct rk_rows *rows, struct rk_method_call *call,
                               const struct rk_model_config *config, const char *mask_name) RK_NODISCARD;
/* A further column [B, R] of F32; *out is NULL when it is absent and not required. */
struct rk_status *rk_rows_find(const struct rk_rows *rows, const struct rk_method_call *call,
                               const char *name, bool is_required, const float **out) RK_NODISCARD;
/* Required columns [B, R, num_ids], of I32 and F32: ids from -1, none, to below vocab_size, and their
 * log-probs, finite where a label is. */
struct rk_status *rk_rows_find_ids(const struct rk_rows *rows, const struct rk_method_call *call,
                                   int64_t num_ids, struct rk_id_columns *out) RK_NODISCARD;
/* INVALID_ARGUMENT (reason NON_FINITE) for a number of the column that is not finite where a label is; NULL
 * is fine. A cell [B, R] of the column has `width` numbers. */
struct rk_status *rk_rows_check_finite(const struct rk_rows *rows, const char *name, int64_t width,
                                       const float *column) RK_NODISCARD;
/* Packs these rows (of the micro-batch) into rows->packed. */
void rk_rows_pack(struct rk_rows *rows, const struct rk_micro_batch *micro);
/* Changes the rows packed last: only the last token of each has a label, its own id, and the cell is the
 * row. */
void rk_rows_mark_last(struct rk_rows *rows, const struct rk_micro_batch *micro);
/* packed[t] = column[cells[t]], of `width` numbers each; 0, or an id of -1, without a label. */
void rk_rows_gather(const struct rk_rows *rows, int64_t width, const float *column, double *packed);
void rk_rows_gather_ids(const struct rk_rows *rows, int64_t width, const int32_t *column, int32_t *packed);
/* column[cells[t]] = packed[t] where there is a label. */
void rk_rows_scatter(const struct rk_rows *rows, int64_t width, const double *packed, float *column);
void rk_rows_scatter_ids(const struct rk_rows *rows, int64_t width, const int32_t *packed, int32_t *column);

/* --- routes.c: router replay --- */

/* The column routed_experts, required. INVALID_ARGUMENT names it, with the shape of the model's experts, or
 * row, token, layer and value. */
struct rk_status *rk_rows_find_routes(struct rk_rows *rows, const struct rk_method_call *call) RK_NODISCARD;
/* From now on rk_rows_pack gives the passes that column. After the plan was checked. */
struct rk_status *rk_rows_replay_routes(struct rk_rows *rows, struct rk_method_call *call) RK_NODISCARD;
void rk_rows_pack_routes(struct rk_rows *rows, const struct rk_micro_batch *micro);

/* Memory comes from the call's arena. */
struct rk_status *rk_route_record_init(struct rk_route_record *record, struct rk_method_call *call,
                                       const struct rk_rows *rows) RK_NODISCARD;
void rk_route_record_begin(struct rk_route_record *record, const struct rk_method_call *call,
                           const struct rk_rows *rows, const struct rk_mini_batch *mini);
/* chosen_experts of the m-th micro-batch. */
uint16_t *rk_route_record_at(const struct rk_route_record *record, int64_t m);
/* After the passes of the mini-batch; collective over tp, cp and pp. Writes `column` [B, S, per_token], which
 * may be NULL, and counts differences from the column of `rows`, if it was found. */
struct rk_status *rk_route_record_end(struct rk_route_record *record, const struct rk_method_call *call,
                                      const struct rk_rows *rows, const struct rk_mini_batch *mini,
                                      uint16_t *column) RK_NODISCARD;
/* Metrics of the collecting rank: routes/tokens and routes/layers count all, routes/other_tokens and
 * routes/other_layers differences. */
void rk_route_record_report(const struct rk_route_record *record, struct rk_job_call *job);

/* --- plan_checks.c --- */

/* Tokens of the i-th micro-batch of this rank's replica, and the maximum of a micro-batch of the plan. */
int64_t rk_method_call_count_tokens(const struct rk_method_call *call, const struct rk_rows *rows,
                                    const struct rk_mini_batch *mini, int32_t i);
int64_t rk_method_call_max_tokens(const struct rk_method_call *call, const struct rk_rows *rows);
/* The micro-batch of this rank's replica. */
const struct rk_micro_batch *rk_method_call_micro_batch(const struct rk_method_call *call,
                                                        const struct rk_mini_batch *mini, int32_t i);
/* Checks the plan of the call against the rows and the mesh, and its micro-batches against the token limits
 * of init_model. */
struct rk_status *rk_method_call_check_plan(const struct rk_method_call *call, const struct rk_rows *rows,
                                            bool trains) RK_NODISCARD;
/* Ids per position of a training pass, or of a log-prob pass: from 1 to the model's vocabulary, and at most
 * the number for which init_model allocated memory. */
struct rk_status *rk_method_call_check_num_ids(const struct rk_method_call *call, int64_t num_ids,
                                               bool trains) RK_NODISCARD;
/* Collective over the replicas, the same answer on all: the plan's num_tokens and num_sequences against the
 * labels of all rows. is_empty[num_mini] marks the mini-batches without labels. */
struct rk_status *rk_method_call_check_denominators(struct rk_method_call *call, const struct rk_rows *rows,
                                                    bool *is_empty) RK_NODISCARD;

/* --- output.c --- */

/* Collective over the role's mesh: *dir becomes the resolved directory, created if it was missing, on the
 * ranks that write this output, and NULL on the others; rk_free it. A rank without write permission, or whose
 * file system has less than `bytes` free (of all data that the ranks write to it), fails the call on all
 * ranks; a path outside ckpt.roots fails before any rank creates a directory. */
struct rk_status *rk_method_call_open_output(struct rk_method_call *call, rk_output_t output,
                                             const char *path, uint64_t bytes, char **dir) RK_NODISCARD;

/* --- paths.c --- */
enum rk_path_resolve_flags {
    RK_PATH_RESOLVE_CREATE = 1u << 0, /* missing directories are made */
    RK_PATH_RESOLVE_PROBE = 1u << 1,  /* missing directories are accepted, and *out is NULL then */
};
/* Resolves an absolute path of a directory, named in a call, below one of ckpt.roots (by their names or by
 * what these resolve to). No component below the root may be "..", a symbolic link or anything but a
 * directory. INVALID_ARGUMENT for a relative path, PERMISSION_DENIED (reason PATH_OUTSIDE_ROOTS), NOT_FOUND.
 * rk_free *out. */
struct rk_status *rk_path_resolve(char **out, char *const *roots, const char *path,
                                  uint32_t flags) RK_NODISCARD;

#endif
