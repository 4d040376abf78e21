/* Private to engine/ckpt/: a Hugging Face model directory as a set of named tensors. */
#ifndef RK_CKPT_INTERNAL_H
#define RK_CKPT_INTERNAL_H

#include "base/rk_safetensors.h"
#include "base/rk_status.h"
#include "engine/model/model_internal.h"

#define RK_HF_CONFIG_FILE "config.json"
#define RK_HF_SINGLE_FILE "model.safetensors"
#define RK_HF_INDEX_FILE  "model.safetensors.index.json"

struct rk_hf_dir;

/* Reads the index when there is one, else model.safetensors, else every *.safetensors. Opens the headers, no
 * data. NOT_FOUND when the directory or its weights are missing; UNIMPLEMENTED for pickled weights; DATA_LOSS
 * for bad files. */
struct rk_status *rk_hf_dir_open(struct rk_hf_dir **out, const char *path) RK_NODISCARD;
void rk_hf_dir_close(struct rk_hf_dir *dir); /* NULL is a no-op */
/* The tensor under the parameter's name, or under its alias when there is none. NOT_FOUND names the tensor
 * and where it should be. The results are borrowed. */
struct rk_status *rk_hf_dir_find(const struct rk_hf_dir *dir, const struct rk_param *param,
                                 const struct rk_st_file **file,
                                 const struct rk_st_tensor **tensor) RK_NODISCARD;
/* Logs what no parameter is read from: a sign of a config.json that does not belong to the weights. */
void rk_hf_dir_warn_unused(const struct rk_hf_dir *dir, const struct rk_param_table *params);

/* Which parameter goes into which file of an export: in table order, a file is closed when the next parameter
 * would exceed max_bytes; a parameter that is larger by itself gets a file of its own. Fills shard_of
 * [params->count], returns the number of files. */
int64_t rk_hf_plan_shards(const struct rk_param_table *params, rk_dtype_t dtype, int64_t max_bytes,
                          int64_t *shard_of);
/* config.json of an export: as the model was made from, with its dtype. Not collective. */
struct rk_status *rk_hf_write_config(const struct rk_model *model, const char *dir) RK_NODISCARD;

#endif
