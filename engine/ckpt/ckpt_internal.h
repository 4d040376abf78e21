/* Private to engine/ckpt/: a Hugging Face model directory as a set of named tensors. */
#ifndef RK_CKPT_INTERNAL_H
#define RK_CKPT_INTERNAL_H

#include "base/format/rk_safetensors.h"
#include "base/rk_status.h"
#include "engine/model/model.h"

#define RK_HF_CONFIG_FILE "config.json"
#define RK_HF_SINGLE_FILE "model.safetensors"
#define RK_HF_INDEX_FILE  "model.safetensors.index.json"

struct rk_hf_dir;

/* Reads model.safetensors when there is one, else the files of the index, else every *.safetensors. Reads the
 * headers, no data. NOT_FOUND when the directory or its weights are missing; UNIMPLEMENTED names what it has
 * instead; DATA_LOSS for bad files. */
struct rk_status *rk_hf_dir_open(struct rk_hf_dir **out, const char *path) RK_NODISCARD;
void rk_hf_dir_close(struct rk_hf_dir *dir); /* NULL is a no-op */
const char *rk_hf_dir_path(const struct rk_hf_dir *dir);
/* A tensor of a file. */
struct rk_hf_tensor {
    const struct rk_st_file *file;
    const struct rk_st_tensor *tensor;
    bool is_stack; /* of several parameters: struct rk_param_stack */
    /* Scales of an F8_E4M3 matrix, F32 [ceil(rows / 128), ceil(cols / 128)]: factors of the elements of each
     * block of 128 x 128 (DeepSeek-V3's weight_scale_inv). NULL otherwise. */
    const struct rk_st_file *scale_file;
    const struct rk_st_tensor *scale;
};
/* Rows and columns of a block that has one scale. */
#define RK_HF_SCALE_BLOCK 128
/* Finds the tensor by the parameter's name, else by its alias, else the stack that contains the parameter.
 * NOT_FOUND names the tensor and where it should be, also the scale of an F8_E4M3 matrix; INVALID_ARGUMENT if
 * the scale is for other blocks. The results are borrowed. */
struct rk_status *rk_hf_dir_find(const struct rk_hf_dir *dir, const struct rk_param *param,
                                 struct rk_hf_tensor *out) RK_NODISCARD;
/* INVALID_ARGUMENT if files have the parameter under two names, tied weights, with different values. */
struct rk_status *rk_hf_dir_check_tied(const struct rk_hf_dir *dir,
                                       const struct rk_param *param) RK_NODISCARD;
/* Whether any file has the tensor under one of these names. */
bool rk_hf_dir_has(const struct rk_hf_dir *dir, const struct rk_param *param);
/* Logs tensors that no parameter uses: a sign that config.json does not match the weights. Layers for
 * multi-token prediction, which follow the others, have a separate warning. */
void rk_hf_dir_warn_unused(const struct rk_hf_dir *dir, const struct rk_model_core *core);

/* --- hf_reader.c: threads read and convert blocks of tensors ahead of the device --- */

/* Blocks that the device may be copying at the same time. */
#define RK_HF_COPIES_MAX 4

/* Rows [row, row + num_rows) and columns [col, col + cols) of a tensor, of which all dimensions but the last
 * count as rows; of a vector, that many elements. */
struct rk_hf_block {
    const struct rk_st_file *file;
    const struct rk_st_tensor *tensor;
    const struct rk_st_file *scale_file; /* of an F8_E4M3 matrix, as in struct rk_hf_tensor; else NULL */
    const struct rk_st_tensor *scale;
    int64_t row, num_rows, col, cols;
    int64_t param;  /* row of the parameter table */
    int64_t offset; /* of the first element, in the flat buffers */
};

struct rk_hf_reader_desc {
    struct rk_device *device;
    rk_dtype_t dtype;                 /* of the parameters */
    rk_dtype_t wide_dtype;            /* of their masters */
    const struct rk_hf_block *blocks; /* [num_blocks]; borrowed */
    int64_t num_blocks;
};

/* A block in pinned memory. */
struct rk_hf_data {
    const void *values; /* in dtype */
    const void *wide;   /* in wide_dtype; NULL when the file has dtype */
};

struct rk_hf_reader;

/* Starts reading. RESOURCE_EXHAUSTED without memory or threads. */
struct rk_status *rk_hf_reader_create(struct rk_hf_reader **out,
                                      const struct rk_hf_reader_desc *desc) RK_NODISCARD;
/* Stops reading. The device must not copy from the blocks any more. NULL is a no-op. */
void rk_hf_reader_destroy(struct rk_hf_reader *reader);
/* Waits for the next block in order; it stays valid until it is released. After an error, take no more. */
struct rk_status *rk_hf_reader_take(struct rk_hf_reader *reader, struct rk_hf_data *out) RK_NODISCARD;
/* Releases the oldest block taken: its memory may be overwritten. */
void rk_hf_reader_release(struct rk_hf_reader *reader);

/* --- hf_wide.c: parameters that files have in fp32 (RK_PARAM_WIDE) --- */

/* Reads the whole parameter, which is never split over ranks, and waits for the device. */
struct rk_status *rk_hf_wide_load(struct rk_model *model, int64_t param,
                                  const struct rk_hf_tensor *found) RK_NODISCARD;

/* Assigns parameters to the files of an export: in table order, a file is closed when the next parameter
 * would exceed max_bytes; a parameter larger than max_bytes gets a file of its own. Fills shard_of
 * [params->count], returns the number of files. */
int64_t rk_hf_assign_shards(const struct rk_param_table *params, rk_dtype_t dtype, int64_t max_bytes,
                            int64_t *shard_of);
/* Writes config.json of an export: the one that the model was created from, with the model's dtype. Not
 * collective. */
struct rk_status *rk_hf_write_config(const struct rk_model *model, const char *dir) RK_NODISCARD;

#endif
