/* The configuration of a job, with verl's names (job_keys.def). */
#ifndef RK_JOB_H
#define RK_JOB_H

#include <stdint.h>

#include "base/rk_array.h"
#include "base/config/rk_config.h"
#include "base/math/rk_preference.h"
#include "base/layout/rk_mesh.h"
#include "base/math/rk_rollout_correction.h"
#include "base/rk_status.h"
#include "rl/rk_algo.h"
#include "driver/rk_driver.h"
#include "proto/limits.h"

/* Short names of verl's sections, for key paths. */
#define RK_JOB_MODELS         "actor_rollout_ref."
#define RK_JOB_MODEL          "actor_rollout_ref.model."
#define RK_JOB_ACTOR          "actor_rollout_ref.actor."
#define RK_JOB_ROLLOUT        "actor_rollout_ref.rollout."
#define RK_JOB_REF            "actor_rollout_ref.ref."
#define RK_JOB_TEACHER        "distillation.teacher."
#define RK_JOB_TEACHER_2      "distillation.teacher_2."
#define RK_JOB_TEACHER_3      "distillation.teacher_3."
#define RK_JOB_TEACHER_4      "distillation.teacher_4."
#define RK_JOB_TEACHERS_MAX   4
#define RK_JOB_TEACHER_COLUMN "distillation.teacher_key"
#define RK_JOB_CRITIC         "critic."
#define RK_JOB_REWARD_MODEL   "reward.reward_model."
#define RK_JOB_REWARD_KWARGS  "reward.reward_kwargs."
#define RK_JOB_DPO            "algorithm.dpo."
#define RK_JOB_OVERLONG       RK_JOB_REWARD_KWARGS "overlong_buffer_cfg."
/* Keys in the section of a role. */
#define RK_JOB_PARAM_OFFLOAD "megatron.param_offload"
#define RK_JOB_TP            "megatron.tensor_model_parallel_size"
#define RK_JOB_CP            "megatron.context_parallel_size"
#define RK_JOB_PP            "megatron.pipeline_model_parallel_size"
#define RK_JOB_EP            "megatron.expert_model_parallel_size"
#define RK_JOB_ETP           "megatron.expert_tensor_parallel_size"
#define RK_JOB_RANKS         "megatron.ranks"
/* Keys in the rollout's section. */
#define RK_JOB_ROLLOUT_RANKS "ranks"
#define RK_JOB_ROLLOUT_TP    "tensor_model_parallel_size"
#define RK_JOB_ROLLOUT_EP    "expert_parallel_size"

/* Reads the file (NULL: none), then the environment (RANKCTL_JOB_<KEY>), then the overrides ("a.b=VALUE"). */
struct rk_status *rk_job_load(struct rk_config **out, const char *path, const char *const *overrides,
                              int64_t num_overrides) RK_NODISCARD;
/* What rk_job_load_from reads, and which defaults it takes. */
struct rk_job_source {
    const char *path, *text; /* a file, or JSON text; both NULL: none */
    const char *name;        /* of the text, for messages */
    bool is_verl_sft;        /* the defaults of verl's SFT trainer precede the defaults of job_keys.def; a job
                              * with the sections of that trainer gets them without this */
    const char *const *overrides;
    int64_t num_overrides;
    /* Callback as in struct rk_config_source. */
    void (*on_foreign)(void *user, const struct rk_config_foreign *row, const char *path,
                       const struct rk_json *value, const char *to);
    void *user;
};
struct rk_status *rk_job_load_from(struct rk_config **out, const struct rk_job_source *source) RK_NODISCARD;
/* Checks the keys together and with the number of daemons, 0: unknown. INVALID_ARGUMENT with all problems,
 * one per line; warns of keys that have no effect but are no error. */
struct rk_status *rk_job_check(const struct rk_config *job, int32_t world_size) RK_NODISCARD;
/* The job for a file in another directory: paths relative to `dir`, the directory of the job's file,
 * become absolute; outputs are relative to the working directory.
 * The caller frees it. */
struct rk_json *rk_job_make_absolute(const struct rk_config *job, const char *dir);
/* Keys whose value in verl's whole default configuration differs from the value of an empty job
 * (verl_defaults.def). */
struct rk_verl_default {
    const char *path, *value; /* verl's, as JSON without blanks */
    const char *why;
};
const struct rk_verl_default *rk_job_verl_defaults(int64_t *count);
/* verl's other keys (verl_keys.def), and the page about them (docs/verl.md). */
const struct rk_config_foreign *rk_job_verl_keys(int64_t *count);
const struct rk_config_preset *rk_job_verl_presets(bool is_sft, int64_t *count);
void rk_job_format_verl_keys(struct rk_str *out);
/* The input of rk_reward_create: the section reward with verl's older custom_reward_function moved into it,
 * and a name. The caller frees it. */
struct rk_json *rk_job_reward(const struct rk_config *job);
/* False for a job with only a reward model. */
bool rk_job_has_reward_function(const struct rk_config *job);
/* The reward gets the columns of the data (TRL's functions). */
bool rk_job_reward_takes_columns(const struct rk_config *job);
/* Tokens of a response with the full penalty of reward_manager dapo. */
int64_t rk_job_overlong_max_len(const struct rk_config *job);
/* A file of the user's Python, relative to `dir`, file:// or not; pkg://MODULE is unchanged. rk_free it. */
char *rk_job_resolve_python(const char *path, const char *dir);
/* Paths of the reward in a whole job; relative ones are relative to `dir`. */
void rk_job_reward_make_absolute(struct rk_json *tree, const char *dir);
/* The rule "paths": names of new files that no file system takes, or that terminals interpret. */
void rk_job_paths_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);
/* The rule "reward". */
void rk_job_reward_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);
/* The rules "estimator", "gdpo" and "kl controller" (job_estimator.c). */
void rk_job_estimator_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);
void rk_job_gdpo_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);
void rk_job_kl_ctrl_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);
/* --- rollout correction and old_log_probs (job_rollout_correction.c) --- */
#define RK_JOB_BYPASS_LOSS "bypass_mode" /* policy loss of algorithm.rollout_correction.bypass_mode */
/* The keys, with the preset's values for unset ones. Borrowed from the job. */
struct rk_rollout_correction_keys rk_job_rollout_correction_keys(const struct rk_config *job);
/* Rollout correction of a job that the rules have passed. */
struct rk_rollout_correction rk_job_rollout_correction(const struct rk_config *job);
/* The options of update_actor with bypass_mode: the loss and its options. */
void rk_job_set_bypass(struct rk_json *options, const struct rk_config *job);
/* Whether the rollout's log-probs have the same bits as log-probs of a pass of the policy. numerics: the
 * run's, or the key's value where the device is not known yet. */
bool rk_job_log_probs_are_equal(const struct rk_config *job, const char *numerics);
/* Whether old_log_probs are the rollout's, without a pass of the policy. */
bool rk_job_takes_rollout_log_probs(const struct rk_config *job, const char *numerics);
/* The rules "rollout correction" and "old log-prob". */
void rk_job_rollout_correction_check(const struct rk_config *job, int32_t world_size,
                                     struct rk_str *problems);
void rk_job_old_log_prob_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);
/* --- router replay (job_router_replay.c) --- */
/* Whether compute_log_prob returns the experts that it chooses (R2), whether the rollout returns the experts
 * that it chose, and whether update_actor is given experts. */
bool rk_job_records_routes(const struct rk_config *job);
bool rk_job_captures_routes(const struct rk_config *job);
bool rk_job_replays_routes(const struct rk_config *job);
/* Whether the pass of actor or reference that computes log-probs gets the rollout's experts. */
bool rk_job_pass_takes_routes(const struct rk_config *job, uint32_t role);
/* The options of init_model of actor or reference. */
void rk_job_set_router_replay(struct rk_json *options, const struct rk_config *job, uint32_t role);
/* The rule "router replay". */
void rk_job_router_replay_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);
/* All keys, in the order of the table. */
const struct rk_config_key *rk_job_keys(int64_t *count);
/* The group that --help and the manual show a key in: the first has the ten keys that most jobs set. */
struct rk_job_group {
    const char *title;
    /* Prefixes of the group's keys; the longest match of all groups wins. Group 0 lists whole keys, in
     * display order. NULL-terminated. */
    const char *const *prefixes;
};
const struct rk_job_group *rk_job_groups(int64_t *count);
/* Calls `each` with the keys of the group, in the order in which they are shown. */
void rk_job_group_keys(int64_t group, void (*each)(void *user, const struct rk_config_key *key), void *user);
/* All groups with the keys' types, defaults and help. */
void rk_job_format_keys(struct rk_str *out);

/* One rule about keys. Appends a line to `problems` for each violation. Exposed because each rule has a test
 * of its own. */
struct rk_job_rule {
    const char *name;
    void (*check)(const struct rk_config *job, int32_t world_size, struct rk_str *problems);
    bool needs_world; /* not checked while the number of daemons is unknown */
};
/* The rules of every job, and the rules of jobs with that kind of data (struct rk_flow_data); each list ends
 * with a row without a name. */
const struct rk_job_rule *rk_job_rules(void);
extern const struct rk_job_rule rk_job_prompt_rules[], rk_job_example_rules[];
/* Reports, for rules, a problem for each of the keys, which end with NULL, that differs from its default but
 * has no effect with the job's algorithm. `instead` is appended: ": KEY does". */
void rk_job_refuse_keys(const struct rk_config *job, const char *const *keys, const char *instead,
                        struct rk_str *problems);

/* The rows of base/config/knobs.def as options: the keys of a group that the job does not leave null. */
typedef enum rk_job_knobs {
    RK_JOB_KNOBS_LOSS,
    RK_JOB_KNOBS_DPO,
    RK_JOB_KNOBS_DISTILL,
    RK_JOB_KNOBS_OPTIM,
    RK_JOB_KNOBS_INIT,
    RK_JOB_KNOBS_MEMORY,
    RK_JOB_KNOBS_RECOMPUTE,
    RK_JOB_KNOBS_MOE,
    RK_JOB_KNOBS_ROUTER,
    RK_JOB_KNOBS_CRITIC_LOSS,
    RK_JOB_KNOBS_CRITIC_OPTIM,
    RK_JOB_KNOBS_CRITIC_INIT,
    RK_JOB_KNOBS_CRITIC_MEMORY,
    RK_JOB_KNOBS_CRITIC_RECOMPUTE,
    RK_JOB_KNOBS_CRITIC_MOE,
    RK_JOB_KNOBS_CRITIC_ROUTER,
    RK_JOB_KNOBS_ROLLOUT,
    RK_JOB_KNOBS_RESHARD,
    RK_JOB_KNOBS_SAMPLING
} rk_job_knobs_t;
void rk_job_copy_knobs(struct rk_json *options, const struct rk_config *job, rk_job_knobs_t group);
/* Sets an option to the value of the key, unless that is null. */
void rk_job_copy_value(struct rk_json *options, const char *option, const struct rk_config *job,
                       const char *path);

/* --- roles (job_roles.c) --- */
struct rk_job_role {
    uint32_t bit;        /* RK_ROLE_ACTOR */
    const char *name;    /* "actor" */
    const char *section; /* of its keys */
    uint32_t shares;     /* the role whose weights it uses if its ranks have the same parts; 0: never */
    const char *model;   /* key of the directory of its own model; NULL: it has the policy's */
    bool trains;         /* then it has a part in checkpoints */
    /* Key of the section that bounds the tokens, and so the memory, of its largest passes. */
    const char *max_tokens;
    bool (*is_wanted)(
        const struct rk_config *job); /* whether keys of a job enable it; NULL: only its flow decides */
};
const struct rk_job_role *rk_job_roles(int64_t *count);
const struct rk_job_role *rk_job_role(uint32_t bit); /* a row of that table (asserted) */
/* Whether the job's flow and keys enable the role; a teacher also needs a model before the job has it. */
bool rk_job_role_enabled(const struct rk_config *job, uint32_t bit);
/* Whether the daemons of the job have the role: the only place that decides this, from its flow and keys. */
bool rk_job_role_needed(const struct rk_config *job, uint32_t bit);
/* Whether it also gets a model: with trainer.val_only roles that only training needs get none. */
bool rk_job_role_has_model(const struct rk_config *job, uint32_t bit);
/* The role whose weights this one uses in the job; 0: it has its own. */
uint32_t rk_job_role_shares(const struct rk_config *job, uint32_t bit);
/* Whether the rollout has separate weights, which update_weights keeps equal to the actor's. */
bool rk_job_moves_weights(const struct rk_config *job);

/* --- meshes (job_mesh.c): the daemons of a role --- */
/* Size of tp, cp, pp, ep or etp from the keys; unset ones of a role take the actor's value. etp 0: tp. */
int32_t rk_job_role_size(const struct rk_config *job, uint32_t role, rk_axis_t axis);
/* Key of an axis below the section of a role. */
const char *rk_job_axis_key(rk_axis_t axis);
/* Ranks that divide the width of every expert of the role. */
int32_t rk_job_etp(const struct rk_config *job, uint32_t role);
/* The rollout has the mesh of the actor unless its keys or the actor's pp or cp differ: then it has tp, ep
 * and dp over the actor's ranks, or over its own. Where only cp differs it still uses the actor's weights. */
bool rk_job_rollout_has_own_mesh(const struct rk_config *job);
/* The ranks of a role, in the order of its mesh; none: all of the world. INVALID_ARGUMENT names
 * key and value. */
struct rk_job_ranks {
    int32_t *items;
    int64_t count, capacity; /* an RK_ARRAY */
};
struct rk_status *rk_job_ranks(struct rk_job_ranks *out, const struct rk_config *job,
                               uint32_t role) RK_NODISCARD;
char *rk_job_ranks_path(const struct rk_config *job, uint32_t role); /* their key; rk_free it */
/* Borrows the ranks. */
struct rk_mesh_spec rk_job_mesh_spec(const struct rk_config *job, uint32_t role,
                                     const struct rk_job_ranks *ranks);
/* INVALID_ARGUMENT when the world has no such mesh. */
struct rk_status *rk_job_mesh_create(struct rk_mesh **out, const struct rk_config *job, uint32_t role,
                                     int32_t world_size) RK_NODISCARD;
/* Replicas of the role's mesh; 1 if the mesh does not fit the world: rule "world" reports that. */
int32_t rk_job_num_replicas(const struct rk_config *job, uint32_t role, int32_t world_size);

/* Division of the layers of a role. */
struct rk_job_pipeline {
    int32_t pp;
    int32_t vpp, num_first, num_last; /* 0: not given */
};
struct rk_job_pipeline rk_job_pipeline(const struct rk_config *job, uint32_t role);
/* Divisor of the number of micro-batches of the role's passes. */
int32_t rk_job_micro_multiple(const struct rk_config *job, uint32_t role);
/* The options of init_model for the division of its passes (RK_LAYOUT_KNOBS). */
void rk_job_set_layout(struct rk_json *options, const struct rk_config *job, uint32_t role);
/* INVALID_ARGUMENT when the role's pipeline cannot divide num_layers: names the keys and the nearest valid
 * division. */
struct rk_status *rk_job_check_layers(const struct rk_config *job, uint32_t role,
                                      int64_t num_layers) RK_NODISCARD;
/* INVALID_ARGUMENT when the rollout divides experts over ranks, and there are none or their number is not
 * divisible. */
struct rk_status *rk_job_check_rollout_experts(const struct rk_config *job, int64_t num_experts) RK_NODISCARD;
/* job_expert_keys.c: INVALID_ARGUMENT when a role whose model has no layers of experts sets a key of experts
 * itself. Values that the role takes from the actor have no effect on such a model. Warns of keys of the
 * exchange if every rank of the role has all experts. */
struct rk_status *rk_job_check_expert_keys(const struct rk_config *job, uint32_t role, bool has_experts,
                                           const char *model_type) RK_NODISCARD;
/* The rules "world" and "pipeline" (job_mesh_rules.c). */
void rk_job_world_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);
void rk_job_pipeline_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);

/* The meshes of the roles that a job needs, in the order of the table of roles. */
struct rk_job_mesh {
    const struct rk_job_role *role;
    struct rk_mesh *mesh;
};
struct rk_job_meshes {
    int64_t count;
    struct rk_job_mesh items[RK_LIMIT_ROLES];
};
struct rk_status *rk_job_meshes_create(struct rk_job_meshes *out, const struct rk_config *job,
                                       int32_t world_size) RK_NODISCARD;
void rk_job_meshes_fini(struct rk_job_meshes *meshes); /* zeroed ones too */
/* NULL when the job does not need the role. Borrowed. */
const struct rk_mesh *rk_job_meshes_find(const struct rk_job_meshes *meshes, uint32_t role);
/* Calls rk_driver_configure with the meshes. */
struct rk_status *rk_job_meshes_configure(const struct rk_job_meshes *meshes,
                                          struct rk_driver *driver) RK_NODISCARD;

/* --- sizes, by algorithm.type (job_roles.c) --- */
/* Sequences that a row of the data becomes: rollout.n, 1 conversation or the 2 sides of a pair. */
int64_t rk_job_sequences(const struct rk_config *job);
/* Sequences that stay in one micro-batch: 1, or the 2 of a pair. */
int64_t rk_job_group_size(const struct rk_config *job);
/* Tokens that no sequence exceeds. */
int64_t rk_job_longest(const struct rk_config *job);

/* --- derived values --- */
/* algorithm.dpo: the loss of a pair. */
struct rk_status *rk_job_preference(struct rk_preference *out, const struct rk_config *job) RK_NODISCARD;
/* Whether compute_log_prob has to return sum_pi_squared. */
bool rk_job_needs_sum_pi_squared(const struct rk_config *job);
/* algorithm.kl_ctrl at the start of a run. */
struct rk_kl_ctrl rk_job_kl_ctrl(const struct rk_config *job);
/* Value of a nullable key or the fallback. */
int64_t rk_job_int_or(const struct rk_config *job, const char *path, int64_t fallback);
bool rk_job_bool_or(const struct rk_config *job, const char *path, bool fallback);

/* Device of the daemons that --local starts: "cpu", "cuda". */
const char *rk_job_device(const struct rk_config *job);
/* megatron.dtype, or its default on devices of that kind ("cpu", "cuda"). */
const char *rk_job_dtype(const struct rk_config *job, const char *device_kind);
/* numerics, or its default on devices of that kind for the model of that config.json (NULL: not known). */
const char *rk_job_numerics(const struct rk_config *job, const char *device_kind,
                            const struct rk_json *hf_config);

/* The rule "keys of roles" (job_role_keys.c). */
void rk_job_role_keys_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);

/* Sizes of the micro-batches of a pass. */
struct rk_job_micro {
    bool use_dynamic_bsz;
    int64_t max_token_len;    /* on one rank: the cp ranks of a replica share a micro-batch */
    int64_t micro_batch_rows; /* of a replica; 0 when not given */
};
struct rk_job_micro rk_job_actor_micro(const struct rk_config *job);
/* section: RK_JOB_ROLLOUT, RK_JOB_REF or the section of a teacher; unset keys take the actor's value. */
struct rk_job_micro rk_job_log_prob_micro(const struct rk_config *job, const char *section);
/* --- the critic (job_critic.c); unset keys take the actor's value --- */
bool rk_job_wants_critic(const struct rk_config *job);
struct rk_job_micro rk_job_critic_micro(const struct rk_config *job);
struct rk_job_micro rk_job_values_micro(const struct rk_config *job); /* of compute_values */
/* Number of newest checkpoints to keep, each with the parts of all roles; 0: all. */
int64_t rk_job_ckpt_to_keep(const struct rk_config *job);
/* Mini-batches and epochs of a role that trains: the actor's keys, or the critic's. */
struct rk_job_update {
    int64_t mini_batch_size; /* prompts */
    int32_t epochs;
    bool shuffle;
    int64_t seed; /* of the shuffle; a step adds its number */
    struct rk_job_micro micro;
};
struct rk_job_update rk_job_update_of(const struct rk_config *job, uint32_t role);
/* The rule "critic". */
void rk_job_critic_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);

/* --- the reward model (job_reward_model.c); unset keys take the actor's value --- */
bool rk_job_wants_reward_model(const struct rk_config *job);
struct rk_job_micro rk_job_reward_micro(const struct rk_config *job);
int64_t rk_job_reward_max_length(const struct rk_config *job); /* tokens of a text that is encoded again */
int64_t rk_job_reward_tokens(const struct rk_config *job);     /* that no micro-batch exceeds */
/* The rule "reward model". */
void rk_job_reward_model_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);

/* --- distillation (job_distill.c) --- */
bool rk_job_wants_teacher(const struct rk_config *job);
/* The teachers that the job has, in the order of the table of roles. */
struct rk_job_teachers {
    int32_t count;
    const struct rk_job_role *items[RK_JOB_TEACHERS_MAX];
};
struct rk_job_teachers rk_job_teachers(const struct rk_config *job);
/* Key of the text by which a row of the data chooses that teacher; NULL: it has none. */
const char *rk_job_teacher_key(const struct rk_config *job, const struct rk_job_role *teacher);
/* loss_mode is a divergence over the teacher's top-k. */
bool rk_job_distills_topk(const struct rk_config *job);
/* The rule "distillation". */
void rk_job_distill_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems);

/* Tokens on one of the cp ranks that share it that no micro-batch cut like that exceeds. */
int64_t rk_job_micro_tokens(const struct rk_config *job, const struct rk_job_micro *micro, int32_t cp);

#endif
