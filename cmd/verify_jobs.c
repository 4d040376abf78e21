/* The two jobs of verify-layout: the user's, followed by changed keys. */
#include "cmd/verify_layout_internal.h"

#include <stdarg.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_file.h"
#include "base/config/rk_knobs.h"
#include "base/format/rk_safetensors.h"
#include "rl/rk_flows.h"
#include "rl/rk_hub.h"
#include "base/rk_small_file.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

void rk_verify_keys_fini(struct rk_verify_keys *keys)
{
    for (int64_t i = 0; i < keys->items.count; i++)
        rk_free(keys->items.items[i]);
    rk_array_fini(&keys->items);
}

void rk_verify_keys_add(struct rk_verify_keys *keys, const char *fmt, ...)
{
    struct rk_str text = {0};
    va_list args;

    va_start(args, fmt);
    rk_str_vappendf(&text, fmt, args);
    va_end(args);
    rk_array_append(&keys->items, rk_str_take(&text));
}

/* --- both --- */

/* config.json of the policy with other layers; *out receives its path (rk_free). */
static struct rk_status *write_config(char **out, const struct rk_config *job, const char *job_dir,
                                      const struct rk_verify_options *options)
{
    const char *model = rk_config_string(job, RK_JOB_MODEL "path");
    char *dir = model ? rk_hub_resolve(job_dir, model) : NULL;
    char *path = model ? rk_path_join(dir, "config.json")
                       : rk_resolve_path(job_dir, rk_config_string(job, RK_JOB_MODEL "hf_config_path"));
    struct rk_json *config = NULL;
    struct rk_status *st =
        rk_json_parse_file(&config, path, RK_FLOW_CONFIG_BYTES_MAX, RK_JSON_BIG_INT_AS_REAL);
    char *text;

    *out = rk_path_join(options->work_dir, "config.json");
    rk_free(dir);
    rk_free(path);
    if (st)
        return RK_WRAP(st, "--layers=%lld", (long long)options->num_layers);
    rk_json_set(config, "num_hidden_layers", rk_json_new_int(options->num_layers));
    rk_json_remove(config, "layer_types"); /* a list of all layers, whose attention this engine has alike */
    text = rk_json_dump(config, 2, false);
    st = rk_write_file_atomic(*out, text, strlen(text));
    rk_free(text);
    rk_json_free(config);
    return st;
}

static struct rk_status *add_layers(struct rk_verify_keys *keys, const struct rk_config *job,
                                    const char *job_dir, const struct rk_verify_options *options)
{
    const char *model = rk_config_string(job, RK_JOB_MODEL "path");
    char *config;
    struct rk_status *st;

    if (options->num_layers == 0)
        return NULL;
    st = write_config(&config, job, job_dir, options);
    rk_verify_keys_add(keys, RK_JOB_MODEL "hf_config_path=%s", config);
    if (model && rk_config_is_null(job, RK_JOB_MODEL "tokenizer_path"))
        rk_verify_keys_add(keys, RK_JOB_MODEL "tokenizer_path=%s", model);
    rk_verify_keys_add(keys, RK_JOB_MODEL "path=null");
    rk_verify_keys_add(keys, RK_JOB_CRITIC "model.path=null");
    rk_free(config);
    return st;
}

/* One mini-batch that is the whole batch; examples have no others. */
static void add_mini_batches(struct rk_verify_keys *keys, int64_t num_rows)
{
    rk_verify_keys_add(keys, RK_JOB_ACTOR "ppo_mini_batch_size=%lld", (long long)num_rows);
    rk_verify_keys_add(keys, RK_JOB_CRITIC "ppo_mini_batch_size=null");
    rk_verify_keys_add(keys, RK_JOB_ACTOR "ppo_epochs=1");
    rk_verify_keys_add(keys, RK_JOB_CRITIC "ppo_epochs=null");
    rk_verify_keys_add(keys, "trainer.critic_warmup=0");
    rk_verify_keys_add(keys, "algorithm.filter_groups.enable=false");
}

/* A load-balancing loss over micro-batches depends on the layout, which divides the sequences. */
static void add_balancing(struct rk_verify_keys *keys, const struct rk_config *job, const char *section)
{
    char *key = rk_format("%s" RK_KNOB_BALANCING_TYPE, section);

    if (strcmp(rk_config_string(job, key), "aux_loss") == 0)
        rk_verify_keys_add(keys, "%s=seq_aux_loss", key);
    rk_free(key);
}

struct rk_status *rk_verify_add_common(struct rk_verify_keys *keys, const struct rk_config *job,
                                       const char *job_dir, const struct rk_verify_options *options)
{
    static const char *const trains[] = {RK_JOB_ACTOR, RK_JOB_CRITIC};
    const struct rk_flow_data *data = rk_flow_of(job)->data;
    int64_t num_rows = options->num_rows > 0 ? options->num_rows : rk_config_int(job, data->step_rows_key);

    rk_verify_keys_add(keys, RK_JOB_ACTOR "megatron.dtype=%s", options->dtype);
    rk_verify_keys_add(keys, "data.train_batch_size=%lld", (long long)num_rows);
    rk_verify_keys_add(keys, "trainer.total_training_steps=1");
    rk_verify_keys_add(keys, "trainer.val_only=false");
    rk_verify_keys_add(keys, "trainer.test_freq=-1");
    rk_verify_keys_add(keys, "data.val_files=null");
    if (data == &rk_flow_data_prompts)
        add_mini_batches(keys, num_rows);
    for (size_t i = 0; i < RK_ARRAY_LEN(trains); i++) {
        rk_verify_keys_add(keys, "%smegatron.grad_offload=false", trains[i]);
        rk_verify_keys_add(keys, "%soptim.lr_warmup_steps=0", trains[i]);
        rk_verify_keys_add(keys, "%soptim.lr_warmup_steps_ratio=0", trains[i]);
        add_balancing(keys, job, trains[i]);
    }
    return add_layers(keys, job, job_dir, options);
}

/* --- the reference --- */

static int32_t size_of(const struct rk_config *job, rk_axis_t axis)
{
    return rk_job_role_size(job, RK_ROLE_ACTOR, axis);
}

static bool is_own(const struct rk_config *job, int32_t world_size, int32_t tp, int32_t pp)
{
    return tp == size_of(job, RK_AXIS_TP) && pp == size_of(job, RK_AXIS_PP) && tp * pp == world_size;
}

int32_t rk_verify_references(struct rk_verify_reference out[RK_VERIFY_REFERENCES_MAX],
                             const struct rk_config *job, int32_t world_size)
{
    int32_t tp_max = size_of(job, RK_AXIS_TP), pp_max = size_of(job, RK_AXIS_PP), count = 0;

    for (int32_t tp = 1; tp <= tp_max && count < RK_VERIFY_REFERENCES_MAX; tp++) {
        if (tp_max % tp == 0 && (tp == 1 || !is_own(job, world_size, tp, 1)))
            out[count++] = (struct rk_verify_reference){tp, 1};
    }
    for (int32_t pp = 2; pp <= pp_max && count < RK_VERIFY_REFERENCES_MAX; pp++) {
        if (pp_max % pp == 0 && !is_own(job, world_size, tp_max, pp))
            out[count++] = (struct rk_verify_reference){tp_max, pp};
    }
    return count;
}

void rk_verify_add_reference(struct rk_verify_keys *keys, const struct rk_config *job,
                             const struct rk_verify_reference *reference)
{
    static const char *const layout[] = {
        RK_JOB_TP,    RK_JOB_CP,   RK_JOB_PP,           RK_JOB_EP,          RK_JOB_ETP,
        RK_JOB_RANKS, RK_KNOB_VPP, RK_KNOB_FIRST_STAGE, RK_KNOB_LAST_STAGE, RK_KNOB_DISPATCH_TOKENS};
    /* Keys of roles and passes: unset, they are the actor's. */
    static const char *const micro[] = {
        RK_JOB_ROLLOUT "tensor_model_parallel_size",
        RK_JOB_ROLLOUT "ranks",
        RK_JOB_ROLLOUT "log_prob_use_dynamic_bsz",
        RK_JOB_ROLLOUT "log_prob_micro_batch_size_per_gpu",
        RK_JOB_REF "log_prob_use_dynamic_bsz",
        RK_JOB_REF "log_prob_micro_batch_size_per_gpu",
        RK_JOB_CRITIC "use_dynamic_bsz",
        RK_JOB_CRITIC "ppo_micro_batch_size_per_gpu",
        RK_JOB_CRITIC "forward_micro_batch_size_per_gpu",
        RK_JOB_REWARD_MODEL "use_dynamic_bsz",
        RK_JOB_REWARD_MODEL "micro_batch_size_per_gpu",
        RK_JOB_ACTOR RK_JOB_RANKS,
        RK_JOB_ACTOR RK_KNOB_VPP,
        RK_JOB_ACTOR RK_KNOB_FIRST_STAGE,
        RK_JOB_ACTOR RK_KNOB_LAST_STAGE,
        "trainer.nnodes",
        "trainer.n_gpus_per_node",
        RK_JOB_MODELS "rollout.gpu_memory_utilization",
    };
    static const char *const of_teachers[] = {"log_prob_use_dynamic_bsz",
                                              "log_prob_micro_batch_size_per_gpu"};
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);

    for (int64_t i = 0; i < num_roles; i++) {
        if (roles[i].bit & (RK_ROLE_ACTOR | RK_ROLE_ROLLOUT))
            continue;
        for (size_t k = 0; k < RK_ARRAY_LEN(layout); k++)
            rk_verify_keys_add(keys, "%s%s=null", roles[i].section, layout[k]);
        for (size_t k = 0; k < RK_ARRAY_LEN(of_teachers) && (roles[i].bit & RK_ROLE_TEACHERS); k++)
            rk_verify_keys_add(keys, "%s%s=null", roles[i].section, of_teachers[k]);
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(micro); i++)
        rk_verify_keys_add(keys, "%s=null", micro[i]);
    rk_verify_keys_add(keys, RK_JOB_ACTOR RK_JOB_TP "=%d", reference->tp);
    rk_verify_keys_add(keys, RK_JOB_ACTOR RK_JOB_PP "=%d", reference->pp);
    rk_verify_keys_add(keys, RK_JOB_ACTOR RK_JOB_CP "=1");
    rk_verify_keys_add(keys, RK_JOB_ACTOR RK_JOB_EP "=1");
    rk_verify_keys_add(keys, RK_JOB_ACTOR RK_JOB_ETP "=null");
    rk_verify_keys_add(keys, RK_JOB_ROLLOUT RK_JOB_ROLLOUT_EP "=1");
    rk_verify_keys_add(keys, RK_JOB_ACTOR "use_dynamic_bsz=false");
    rk_verify_keys_add(keys, RK_JOB_ACTOR "ppo_micro_batch_size_per_gpu=%lld",
                       (long long)rk_job_group_size(job));
    rk_verify_keys_add(keys, RK_JOB_MODELS "rollout.max_num_seqs=1"); /* it does not generate */
}
