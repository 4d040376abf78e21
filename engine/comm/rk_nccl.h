/* Private to engine/comm: the part of NCCL's API that rankd uses, declared here so that neither the build nor
 * a machine with one GPU needs the library. comm_nccl_load.c finds the functions in libnccl.so.2 when the
 * first world of several ranks is created; tests replace the table.
 *
 * Apart from the prefix `rk_`, names and values are NCCL's (nccl.h of 2.18; later versions are compatible,
 * because the library reads only the part of the configuration that its size and version fields cover). */
#ifndef RK_NCCL_H
#define RK_NCCL_H

#include <stddef.h>

#include "base/rk_status.h"
#include "engine/rk_comm.h"

RK_BEGIN_DECLS

extern const struct rk_comm_ops rk_comm_nccl_ops;

/* The first version with ncclCommSplit; also the version of struct rk_nccl_config. */
#define RK_NCCL_MIN_VERSION 21800

typedef struct rk_nccl_comm *rk_nccl_comm_t;

typedef enum rk_nccl_result {
    RK_NCCL_SUCCESS = 0,
    RK_NCCL_UNHANDLED_CUDA_ERROR = 1,
    RK_NCCL_SYSTEM_ERROR = 2,
    RK_NCCL_INTERNAL_ERROR = 3,
    RK_NCCL_INVALID_ARGUMENT = 4,
    RK_NCCL_INVALID_USAGE = 5,
    RK_NCCL_REMOTE_ERROR = 6,
    RK_NCCL_IN_PROGRESS = 7
} rk_nccl_result_t;

typedef enum rk_nccl_dtype {
    RK_NCCL_U8 = 1,
    RK_NCCL_I32 = 2,
    RK_NCCL_I64 = 4,
    RK_NCCL_F16 = 6,
    RK_NCCL_F32 = 7,
    RK_NCCL_F64 = 8,
    RK_NCCL_BF16 = 9
} rk_nccl_dtype_t;

typedef enum rk_nccl_reduce { RK_NCCL_SUM = 0, RK_NCCL_MAX = 2, RK_NCCL_MIN = 3 } rk_nccl_reduce_t;

#define RK_NCCL_ID_BYTES 128

typedef struct rk_nccl_id {
    char bytes[RK_NCCL_ID_BYTES];
} rk_nccl_id_t;

#define RK_NCCL_NO_COLOR     (-1)
#define RK_NCCL_UNDEFINED    (-2147483647 - 1)
#define RK_NCCL_CONFIG_MAGIC 0xcafebeefu

struct rk_nccl_config {
    size_t size;
    unsigned int magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};

#define RK_NCCL_CONFIG_INITIALIZER                                                                           \
    {                                                                                                        \
        .size = sizeof(struct rk_nccl_config), .magic = RK_NCCL_CONFIG_MAGIC,                                \
        .version = RK_NCCL_MIN_VERSION, .blocking = RK_NCCL_UNDEFINED,                                       \
        .cga_cluster_size = RK_NCCL_UNDEFINED, .min_ctas = RK_NCCL_UNDEFINED, .max_ctas = RK_NCCL_UNDEFINED, \
        .net_name = NULL, .split_share = RK_NCCL_UNDEFINED                                                   \
    }

/* X(entry, name in the library, return type, parameters). Streams are cudaStream_t. */
#define RK_NCCL_TABLE(X)                                                                                    \
    X(get_version, ncclGetVersion, rk_nccl_result_t, (int *version))                                        \
    X(get_unique_id, ncclGetUniqueId, rk_nccl_result_t, (rk_nccl_id_t * id))                                \
    X(comm_init_rank_config, ncclCommInitRankConfig, rk_nccl_result_t,                                      \
      (rk_nccl_comm_t * comm, int num_ranks, rk_nccl_id_t id, int rank, struct rk_nccl_config *config))     \
    X(comm_split, ncclCommSplit, rk_nccl_result_t,                                                          \
      (rk_nccl_comm_t comm, int color, int key, rk_nccl_comm_t *child, struct rk_nccl_config *config))      \
    X(comm_get_async_error, ncclCommGetAsyncError, rk_nccl_result_t,                                        \
      (rk_nccl_comm_t comm, rk_nccl_result_t * error))                                                      \
    X(comm_abort, ncclCommAbort, rk_nccl_result_t, (rk_nccl_comm_t comm))                                   \
    X(get_error_string, ncclGetErrorString, const char *, (rk_nccl_result_t result))                        \
    X(get_last_error, ncclGetLastError, const char *, (rk_nccl_comm_t comm))                                \
    X(group_start, ncclGroupStart, rk_nccl_result_t, (void))                                                \
    X(group_end, ncclGroupEnd, rk_nccl_result_t, (void))                                                    \
    X(all_reduce, ncclAllReduce, rk_nccl_result_t,                                                          \
      (const void *send, void *recv, size_t count, rk_nccl_dtype_t dtype, rk_nccl_reduce_t op,              \
       rk_nccl_comm_t comm, void *stream))                                                                  \
    X(all_gather, ncclAllGather, rk_nccl_result_t,                                                          \
      (const void *send, void *recv, size_t count, rk_nccl_dtype_t dtype, rk_nccl_comm_t comm,              \
       void *stream))                                                                                       \
    X(reduce_scatter, ncclReduceScatter, rk_nccl_result_t,                                                  \
      (const void *send, void *recv, size_t count, rk_nccl_dtype_t dtype, rk_nccl_reduce_t op,              \
       rk_nccl_comm_t comm, void *stream))                                                                  \
    X(broadcast, ncclBroadcast, rk_nccl_result_t,                                                           \
      (const void *send, void *recv, size_t count, rk_nccl_dtype_t dtype, int root, rk_nccl_comm_t comm,    \
       void *stream))                                                                                       \
    X(send, ncclSend, rk_nccl_result_t,                                                                     \
      (const void *data, size_t count, rk_nccl_dtype_t dtype, int peer, rk_nccl_comm_t comm, void *stream)) \
    X(recv, ncclRecv, rk_nccl_result_t,                                                                     \
      (void *data, size_t count, rk_nccl_dtype_t dtype, int peer, rk_nccl_comm_t comm, void *stream))

struct rk_nccl_api {
#define X(entry, name, type, parameters) type(*entry) parameters;
    RK_NCCL_TABLE(X)
#undef X
};

/* The table, loaded at the first call. FAILED_PRECONDITION, reason NCCL_MISSING, when the library is absent,
 * too old or lacks a function. Static storage. Engine thread only. */
struct rk_status *rk_nccl_api_get(const struct rk_nccl_api **out) RK_NODISCARD;

RK_END_DECLS

#endif
