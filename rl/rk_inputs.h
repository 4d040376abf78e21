/* The inputs that a job names: its model, tokenizer, data, rewards and the models of its roles, read before
 * any daemon is started.
 */
#ifndef RK_INPUTS_H
#define RK_INPUTS_H

#include "base/config/rk_config.h"
#include "rl/rk_flow.h"
#include "rl/rk_algo.h"
#include "text/rk_chat.h"
#include "rl/rk_dataset.h"
#include "driver/rk_driver.h"
#include "rl/rk_examples.h"
#include "rl/rk_reward.h"
#include "text/rk_tokenizer.h"

/* Linear term of verl's 7B model, used if the model's config.json is not on this machine. */
#define RK_FLOW_WORKLOAD_DEFAULT 24576
#define RK_FLOW_WORKLOAD_MAX     (1 << 30)
#define RK_FLOW_CONFIG_BYTES_MAX (1u << 20) /* of config.json */

/* The reward model of a job. */
struct rk_flow_reward_model {
    char *path;                     /* of reward.reward_model.model_path; NULL: no reward model */
    struct rk_tokenizer *tokenizer; /* tokenizer with which texts are encoded again; NULL: the model uses the
                                     * policy's tokens */
    struct rk_chat *chat;           /* with the tokenizer; NULL: prompts are texts */
    int64_t now_s;                  /* time for templates that render the date */
};

/* The teachers of a job. */
struct rk_flow_teachers {
    int32_t count;
    struct rk_flow_teacher {
        const struct rk_job_role *role;
        const char *key; /* borrowed from the job; "": it has none, and is the only teacher */
        char *path;      /* of its model */
        /* Number of ids to which its probabilities are restricted if its vocabulary is larger than the
         * student's; 0: all. */
        int64_t vocab_size;
    } items[RK_JOB_TEACHERS_MAX];
    const char *column; /* of the data, with the key of the row's teacher */
};

/* Additional inputs of a job with prompts. */
struct rk_prompt_inputs {
    struct rk_dataset *train, *val; /* val: NULL without data.val_files */
    struct rk_reward *reward;       /* NULL: only the reward model scores */
    struct rk_flow_reward_model reward_model;
    const struct rk_adv_ops *adv;
    char *critic_path;             /* of critic.model.path; NULL: the model is the actor's */
    struct rk_json *critic_config; /* its config.json; NULL: no critic_path, or not on this machine */
    struct rk_flow_teachers teachers;
};

/* Additional inputs of a job with examples. */
struct rk_example_inputs {
    struct rk_examples *train, *val; /* val: NULL without data.val_files */
};

/* The inputs of a job, read and checked before any daemon is started. */
struct rk_flow_inputs {
    const struct rk_flow_data *data; /* selects the part of the union */
    union {
        struct rk_prompt_inputs prompts;
        struct rk_example_inputs examples;
    } of;             /* by rk_flow_prompt_inputs and rk_flow_example_inputs, which assert it */
    char *model_path; /* absolute, of a name in Hugging Face's cache too; NULL: random weights */
    char *tokenizer_dir;
    struct rk_json *hf_config;         /* config.json; NULL when model_path is not on this machine */
    struct rk_json *generation_config; /* generation_config.json; NULL: the model has none */
    struct rk_json *eos_ids; /* array of all ids that end a response, the tokenizer's eos_token first */
    int64_t pad_id;
    struct rk_workload workload;
    struct rk_tokenizer *tokenizer;
    struct rk_chat *chat;  /* NULL: the tokenizer has no chat template */
    char *custom_template; /* text that replaces the tokenizer's; NULL: none */
};

/* The part of its kind of data, of a job that has such data (asserted). */
const struct rk_prompt_inputs *rk_flow_prompt_inputs(const struct rk_flow_inputs *inputs);
const struct rk_example_inputs *rk_flow_example_inputs(const struct rk_flow_inputs *inputs);
/* The directory of the role's separate model; NULL: it has the policy's, or the
 * job has no such role. */
const char *rk_flow_own_model(const struct rk_flow_inputs *inputs, uint32_t role);

/* Relative paths of the job are relative to `job_dir`. */
struct rk_status *rk_flow_inputs_load(struct rk_flow_inputs *out, const struct rk_config *job,
                                      const char *job_dir) RK_NODISCARD;
void rk_flow_inputs_fini(struct rk_flow_inputs *inputs);
/* {"train_files": {"read", "used", "skipped_overlong", ...}, "val_files": ..., "notes": [{"text", "share"}]}:
 * rows that were skipped or cut. rk_json_free it. */
struct rk_json *rk_flow_rows_json(const struct rk_flow_inputs *inputs, const struct rk_config *job);
int64_t rk_flow_inputs_num_rows(const struct rk_flow_inputs *inputs); /* of data.train_files */
/* Full paths of the files that the list `key` of the job names: NULL-terminated; rk_flow_files_free. */
struct rk_status *rk_flow_files(char ***out, const struct rk_config *job, const char *key,
                                const char *job_dir) RK_NODISCARD;
void rk_flow_files_free(char **files); /* NULL is a no-op */

/* --- tokenizers of a job (flow_tokenizer.c) --- */
/* Opens `full`, a tokenizer.json or its directory; *dir receives the directory (rk_free), on failure too.
 * NOT_FOUND when it is not on this machine; the message calls it `name`, as the job does. */
struct rk_status *rk_flow_open_tokenizer(struct rk_tokenizer **out, char **dir, const char *full,
                                         const char *name) RK_NODISCARD;
/* Copies the files of a tokenizer from one directory to the other. */
struct rk_status *rk_flow_copy_tokenizer(const char *from_dir, const char *to_dir) RK_NODISCARD;
/* Writes the tokenizer of the policy with the chat template that it was trained with. */
struct rk_status *rk_flow_write_tokenizer(const struct rk_flow_inputs *inputs,
                                          const char *to_dir) RK_NODISCARD;
/* The text of a chat template from `value`, the name of an existing file or the text itself
 * (flow_template.c); *path is the file, or NULL. INVALID_ARGUMENT for text without Jinja. rk_free both, on
 * failure too. */
struct rk_status *rk_flow_read_template(char **out, char **path, const char *value,
                                        const char *job_dir) RK_NODISCARD;
/* INVALID_ARGUMENT names the first token of `path` that is not the same in the tokenizer of `owner`. */
struct rk_status *rk_flow_compare_tokens(const struct rk_tokenizer *tokenizer, const char *path,
                                         const struct rk_tokenizer *expected, const char *owner) RK_NODISCARD;

/* --- the directory of a model that is not the policy's (flow_model_dir.c) --- */
struct rk_flow_model_dir {
    char *config_path;
    struct rk_json *config; /* config.json; NULL: not on this machine */
    char *tokenizer_dir;
    struct rk_tokenizer *tokenizer; /* NULL: none was found */
};
/* UNIMPLEMENTED says what is at the path instead of a model's directory, if that is on this machine. */
struct rk_status *rk_flow_check_model_dir(const char *path) RK_NODISCARD;
/* Without its tokenizer. Fails for another kind of directory and for a config.json that is no JSON; `out`
 * must be released after a failure too. */
struct rk_status *rk_flow_model_dir_open(struct rk_flow_model_dir *out, const char *path) RK_NODISCARD;
void rk_flow_model_dir_fini(struct rk_flow_model_dir *dir);
/* Checks a config.json: the family exists; the model takes sequences as long as the job's; the pipeline of
 * the role can divide the layers, and the rollout the experts; a model without experts has no keys of
 * experts. No error for NULL, or for a role that the job does not need. */
struct rk_status *rk_flow_check_model(const struct rk_config *job, uint32_t role,
                                      const struct rk_json *config) RK_NODISCARD;
/* rk_flow_check_model for all models of a job that are on this machine. */
struct rk_status *rk_flow_check_models(const struct rk_config *job, const char *job_dir) RK_NODISCARD;
const char *rk_flow_architecture(const struct rk_flow_model_dir *dir); /* NULL: not given */
/* Whether the model classifies tokens or sequences. */
bool rk_flow_is_classifier(const struct rk_flow_model_dir *dir);
int64_t rk_flow_num_labels(const struct rk_flow_model_dir *dir);
/* INVALID_ARGUMENT unless the model has the policy's tokens; `advice` is added to the message if a
 * tokenizer is needed to decide. */
struct rk_status *rk_flow_check_same_tokens(const struct rk_flow_model_dir *dir,
                                            const struct rk_flow_inputs *inputs,
                                            const char *advice) RK_NODISCARD;

/* Checks the critic's directory, if the job has one (critic_dir.c). INVALID_ARGUMENT names the
 * file that declares a missing value head, or has another vocabulary. */
struct rk_status *rk_flow_load_critic(struct rk_prompt_inputs *out, const struct rk_flow_inputs *inputs,
                                      const struct rk_config *job, const char *job_dir) RK_NODISCARD;

/* Checks the job's teachers: the directory of each, and that its vocabulary equals the student's except
 * for padding (teacher_dirs.c). INVALID_ARGUMENT names the file and the difference. */
struct rk_status *rk_flow_load_teachers(struct rk_flow_teachers *out, const struct rk_flow_inputs *inputs,
                                        const struct rk_config *job, const char *job_dir) RK_NODISCARD;
void rk_flow_teachers_fini(struct rk_flow_teachers *teachers);
/* NULL: the job has no such teacher. */
const struct rk_flow_teacher *rk_flow_teacher_find(const struct rk_flow_teachers *teachers, uint32_t role);
/* Index of the teacher of a row of the data. INVALID_ARGUMENT names the value and the keys. */
struct rk_status *rk_flow_choose_teacher(int64_t *out, const struct rk_flow_teachers *teachers,
                                         const struct rk_dataset_row *row) RK_NODISCARD;
/* Chooses the teacher of every row; warns of a teacher without rows. */
struct rk_status *rk_flow_check_teacher_rows(const struct rk_flow_teachers *teachers,
                                             struct rk_dataset *dataset, const char *key) RK_NODISCARD;

/* --- the reward model of a job (flow_reward_model.c, flow_rm_score.c) --- */
/* Call after the prompts are loaded. INVALID_ARGUMENT for a directory without a score head, and for a
 * vocabulary that is not the policy's and has no tokenizer here. */
struct rk_status *rk_flow_load_reward_model(struct rk_prompt_inputs *out, const struct rk_flow_inputs *inputs,
                                            const struct rk_config *job, const char *job_dir) RK_NODISCARD;
void rk_flow_reward_model_fini(struct rk_flow_reward_model *model);
/* The tokens of a prompt with its response in the model's own tokenizer: its chat template over the messages,
 * or the concatenated texts. rk_free out->items, on failure too. */
struct rk_status *rk_flow_reward_text(struct rk_tokenizer_ids *out, const struct rk_flow_reward_model *model,
                                      const struct rk_dataset_row *row,
                                      const struct rk_reward_item *item) RK_NODISCARD;

#endif
