/* Every bound of the wire and the daemon, with its reason. Exceeding one gives RESOURCE_EXHAUSTED naming it.
 */
#ifndef RK_LIMITS_H
#define RK_LIMITS_H

#define RK_LIMIT_CHUNK_BYTES_DEFAULT \
    (2 << 20) /* full loopback speed, control calls stay in the low milliseconds */
#define RK_LIMIT_CHUNK_BYTES_MAX     (4 << 20)                /* stock clients accept 4 MiB messages */
#define RK_LIMIT_MESSAGE_BYTES       ((4 << 20) + (64 << 10)) /* a chunk of the maximum plus its header */
#define RK_LIMIT_HEADER_BYTES        (1 << 20)  /* ExecuteHeader: micro-batch plan and columns of many rows */
#define RK_LIMIT_TENSORS             256        /* columns of one batch */
#define RK_LIMIT_STRINGS             (64 << 10) /* non-tensor values of one batch */
#define RK_LIMIT_META_ENTRIES        1024       /* options or meta of one call */
#define RK_LIMIT_NAME_BYTES          128        /* column, option, role and method names */
#define RK_LIMIT_DOC_BYTES           (4 << 10)  /* any other text except the values of a column */
#define RK_LIMIT_TENSOR_RANK         8          /* as in safetensors files */
#define RK_LIMIT_METRICS             4096       /* of one result or progress message */
#define RK_LIMIT_LIST                4096       /* entries of any list without a separate limit */
#define RK_LIMIT_UNKNOWN_FIELDS      16         /* of one message, nested ones included */
#define RK_LIMIT_INFLIGHT_BYTES      (8LL << 30) /* host memory for batches in flight; rpc.max_inflight */
#define RK_LIMIT_QUEUED_CALLS        8           /* accepted or waiting calls of one daemon */
#define RK_LIMIT_STORED_REQUESTS     64          /* request table for replays */
#define RK_LIMIT_STORED_RESULT_BYTES (1LL << 30) /* results kept for replays, newest first */
#define RK_LIMIT_MICRO_BATCHES       65536       /* of one micro-batch plan */
#define RK_LIMIT_ROLES               16
#define RK_LIMIT_EPOCH_LEAP          (1LL << 48) /* of one grant; allows milliseconds of a clock */
#define RK_LIMIT_EVENT_KINDS         16          /* in one Watch request */
#define RK_LIMIT_SILENT_CALLS        128         /* calls without a token that have sent no message yet */
#define RK_LIMIT_METADATA_BYTES      (16 << 10)
#define RK_LIMIT_STATUS_TEXT_BYTES   (4 << 10)  /* message in grpc-status-details-bin, which is metadata */
#define RK_LIMIT_QUOTA_BYTES         (64 << 20) /* gRPC's receive memory of a server: the effective bound */
#define RK_LIMIT_HEALTH_QUOTA_BYTES  (8 << 20)  /* the same of health.listen, whose messages are names */
#define RK_LIMIT_HEALTH_CONNECTIONS  32         /* of health.listen: a probe needs one */

#endif
