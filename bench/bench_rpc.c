/* Cost of calls to daemons on this machine through librankd_driver. dims: transport, daemons, calls per run,
 * and bytes of a batch. */
#include "bench/bench_rpc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_json.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"
#include "driver/rk_driver.h"

#define NUM_WARM    50
#define NUM_STREAMS 5
/* A minimal model, so that batches can be sent to it. */
#define MODEL_OPTIONS                                                                                        \
    "{\"model.hf_config\": {\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "          \
    "\"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, " \
    "\"num_key_value_heads\": 2, \"vocab_size\": 64, \"max_position_embeddings\": 64, "                      \
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": "   \
    "false}}"
#define ROLLOUT_OPTIONS "{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 4}"

struct session {
    struct bench_daemons *daemons;
    struct rk_driver *driver;
};

static void session_close(struct session *session)
{
    rk_driver_close(session->driver);
    bench_daemons_stop(session->daemons);
}

static struct rk_status *open_driver(struct rk_driver **out, const struct bench_daemons *daemons,
                                     int32_t count)
{
    struct rk_tls_files files = bench_daemons_tls_files(daemons);
    struct rk_driver_config config = {.struct_size = sizeof(config),
                                      .addresses = bench_daemons_addresses(daemons),
                                      .num_addresses = count,
                                      .tls_ca = files.ca,
                                      .tls_cert = files.cert,
                                      .tls_key = files.key};

    return rk_driver_open(out, &config);
}

static struct rk_status *session_open(struct session *session, const int64_t *dims)
{
    *session = (struct session){0};
    RK_TRY(bench_daemons_start(&session->daemons, (bench_transport_t)dims[0], (int32_t)dims[1]));
    return open_driver(&session->driver, session->daemons, (int32_t)dims[1]);
}

/* --- small calls --- */

static struct rk_status *get_status(struct session *session)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_driver_worker worker;
    struct rk_status *st;

    rk_driver_get_status(session->driver, arena, &worker);
    st = worker.error;
    rk_arena_destroy(arena);
    return st;
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* A quantile of sorted values. */
static double quantile(const double *values, int64_t count, double share)
{
    return values[(int64_t)((double)(count - 1) * share)];
}

/* Sorted seconds of each of `count` calls; rk_free them. */
static struct rk_status *time_each(double **out, int64_t count,
                                   struct rk_status *(*call)(struct session *session),
                                   struct session *session)
{
    double *seconds = rk_calloc((size_t)count, sizeof(*seconds));

    for (int64_t i = -NUM_WARM; i < count; i++) {
        int64_t begin_ns = rk_time_now_ns();
        struct rk_status *st = call(session);

        if (st) {
            rk_free(seconds);
            return st;
        }
        if (i >= 0)
            seconds[i] = (double)(rk_time_now_ns() - begin_ns) * 1e-9;
    }
    qsort(seconds, (size_t)count, sizeof(*seconds), compare_doubles);
    *out = seconds;
    return NULL;
}

static double cpu_seconds(void)
{
    struct rusage usage;

    RK_ASSERT(getrusage(RUSAGE_SELF, &usage) == 0);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* Seconds of calls, from their beginning to their end and of this process's processor time. */
struct call_times {
    double median, p90, p99, cpu;
};

static struct rk_status *measure_calls(struct call_times *times, struct session *session, int64_t count,
                                       struct rk_status *(*call)(struct session *session))
{
    double begin = cpu_seconds(), *seconds;

    RK_TRY(time_each(&seconds, count, call, session));
    times->cpu = (cpu_seconds() - begin) / (double)(count + NUM_WARM);
    times->median = quantile(seconds, count, 0.5);
    times->p90 = quantile(seconds, count, 0.9);
    times->p99 = quantile(seconds, count, 0.99);
    rk_free(seconds);
    return NULL;
}

struct rk_status *bench_run_rpc_status(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result)
{
    static const double must[] = {120e-6, 50e-6, 200e-6}; /* by transport */
    const int64_t *dims = bench_dims(ctx, bench);
    struct call_times times = {0};
    struct session session;
    struct rk_status *st = session_open(&session, dims);

    snprintf(result->shape, sizeof(result->shape), "GetStatus over %s",
             bench_transport_name((bench_transport_t)dims[0]));
    if (!st)
        st = measure_calls(&times, &session, dims[2], get_status);
    session_close(&session);
    result->measured = times.median * 1e6;
    result->bound = must[dims[0]] * 1e6;
    snprintf(result->note, sizeof(result->note),
             "median; p90 %.0f us, p99 %.0f us; CPU of the driver %.0f us per call (must %.0f us)",
             times.p90 * 1e6, times.p99 * 1e6, times.cpu * 1e6, must[dims[0]] * 1e6);
    return st;
}

/* --- a method without work, on all daemons --- */

static struct rk_status *configure(struct session *session)
{
    int32_t count = rk_driver_num_workers(session->driver);
    const struct rk_role_mesh meshes[] = {{"actor", {.dp = count}}, {"rollout", {.dp = count}}};

    RK_TRY(rk_driver_claim(session->driver));
    return rk_driver_configure(session->driver, meshes, RK_ARRAY_LEN(meshes));
}

static struct rk_status *get_mesh_info(struct session *session)
{
    const struct rk_driver_call_args call = {.role = "actor", .method = "get_mesh_info"};
    struct rk_driver_result result;

    RK_TRY(rk_driver_call(session->driver, &call, &result));
    rk_driver_result_fini(&result);
    return NULL;
}

struct rk_status *bench_run_rpc_dispatch(struct bench_ctx *ctx, const struct bench_case *bench,
                                         struct bench_result *result)
{
    const int64_t *dims = bench_dims(ctx, bench);
    struct call_times times = {0};
    struct session session;
    struct rk_status *st = session_open(&session, dims);

    snprintf(result->shape, sizeof(result->shape), "get_mesh_info of %lld daemons over %s",
             (long long)dims[1], bench_transport_name((bench_transport_t)dims[0]));
    if (!st)
        st = configure(&session);
    if (!st)
        st = measure_calls(&times, &session, dims[2], get_mesh_info);
    session_close(&session);
    result->measured = times.cpu * 1e6;
    result->bound = 500;
    snprintf(result->note, sizeof(result->note),
             "processor time of the driver (must 500 us); a call takes %.0f us, p90 %.0f us, p99 %.0f us, "
             "while the daemons compute on the same cores",
             times.median * 1e6, times.p90 * 1e6, times.p99 * 1e6);
    return st;
}

/* --- batches --- */

static struct rk_status *init_model(struct session *session, const char *role, const char *text)
{
    struct rk_driver_call_args call = {.role = role, .method = "init_model"};
    struct rk_driver_result result;
    struct rk_json *options;
    struct rk_status *st;

    RK_TRY(rk_json_parse(&options, text, strlen(text), "options", 0));
    call.options = options;
    st = rk_driver_call(session->driver, &call, &result);
    rk_json_free(options);
    if (!st)
        rk_driver_result_fini(&result);
    return st;
}

static struct rk_status *put_ids(struct rk_batch *batch, const char *name, int32_t rank, int64_t columns)
{
    struct rk_column *column;

    RK_TRY(rk_column_create_dense(&column, RK_DTYPE_I64, rank, (const int64_t[]){1, columns}));
    memset(rk_column_data(column), 1, rk_column_bytes(column)); /* touches the pages */
    return rk_batch_put_new(batch, name, column);
}

/* A call with a batch. */
struct load {
    struct rk_batch *batch;
    struct rk_json *options;
};

static void load_fini(struct load *load)
{
    rk_batch_destroy(load->batch);
    rk_json_free(load->options);
}

/* A prompt of that many bytes, with its mask. It exceeds the model's limits, so the call is rejected after
 * all bytes have arrived. */
static struct rk_status *load_init(struct load *load, int64_t bytes)
{
    load->options = rk_json_new_object();
    rk_json_set(load->options, "response_length", rk_json_new_int(1));
    RK_TRY(rk_batch_create(&load->batch, 1));
    RK_TRY(put_ids(load->batch, "prompts", 2, bytes / 16));
    RK_TRY(put_ids(load->batch, "attention_mask", 2, bytes / 16));
    return put_ids(load->batch, "stream", 1, 1);
}

static struct rk_driver_call_args call_of(const struct load *load)
{
    return (struct rk_driver_call_args){
        .role = "rollout", .method = "generate_sequences", .batch = load->batch, .options = load->options};
}

/* Checks that the call with a load was rejected; takes the status. */
static struct rk_status *check_refused(struct rk_status *st, struct rk_driver_result *result)
{
    if (!st) {
        rk_driver_result_fini(result);
        return RK_FAIL(RK_INTERNAL, "generate_sequences accepted a prompt that exceeds the model's limits");
    }
    if (rk_status_code(st) != RK_INVALID_ARGUMENT ||
        !strstr(rk_status_message(st), "max_position_embeddings"))
        return st;
    rk_status_free(st);
    return NULL;
}

static struct rk_status *send_load(struct rk_driver *driver, const struct load *load)
{
    const struct rk_driver_call_args call = call_of(load);
    struct rk_driver_result result;
    struct rk_status *st = rk_driver_call(driver, &call, &result);

    return check_refused(st, &result);
}

static struct rk_status *open_for_batches(struct session *session, const int64_t *dims)
{
    RK_TRY(session_open(session, dims));
    RK_TRY(configure(session));
    RK_TRY(init_model(session, "actor", MODEL_OPTIONS));
    return init_model(session, "rollout", ROLLOUT_OPTIONS);
}

/* The best of several runs, like the raw copy: other work on the machine only adds time. */
static struct rk_status *time_stream(double *seconds, struct rk_driver *driver, const struct load *load)
{
    *seconds = INFINITY;
    for (int i = 0; i < NUM_STREAMS; i++) {
        int64_t begin_ns = rk_time_now_ns();

        RK_TRY(send_load(driver, load));
        *seconds = fmin(*seconds, (double)(rk_time_now_ns() - begin_ns) * 1e-9);
    }
    return NULL;
}

struct rk_status *bench_run_rpc_stream(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result)
{
    static const double must[] = {3, 3, 1.2};
    const int64_t *dims = bench_dims(ctx, bench);
    bench_transport_t transport = (bench_transport_t)dims[0];
    struct load load = {0};
    struct session session;
    double seconds = 0, raw_seconds = 0;
    struct rk_status *st = open_for_batches(&session, dims);

    snprintf(result->shape, sizeof(result->shape), "a batch of %lld MiB over %s", (long long)dims[3] >> 20,
             bench_transport_name(transport));
    if (!st)
        st = load_init(&load, dims[3]);
    if (!st)
        st = time_stream(&seconds, session.driver, &load);
    if (!st)
        st = bench_raw_copy(&raw_seconds, transport != BENCH_UNIX, (size_t)dims[3], NUM_STREAMS);
    load_fini(&load);
    session_close(&session);
    RK_TRY(st);
    result->measured = (double)dims[3] / seconds * 1e-9;
    result->bound = (double)dims[3] / raw_seconds * 1e-9;
    snprintf(result->note, sizeof(result->note),
             "from memory to memory; bound: a socket of the same kind (must %.1f GB/s)", must[transport]);
    return NULL;
}

/* --- small calls during a batch --- */

struct sender {
    struct rk_driver *driver;
    const struct load *load;
    struct rk_future *future;
    int64_t num_sent;
};

static struct rk_status *keep_sending(struct sender *sender)
{
    const struct rk_driver_call_args call = call_of(sender->load);
    struct rk_driver_result result;
    struct rk_status *st;

    if (sender->future && !rk_future_is_done(sender->future))
        return NULL;
    if (sender->future) {
        st = rk_future_take(sender->future, &result);
        sender->future = NULL;
        sender->num_sent++;
        RK_TRY(check_refused(st, &result));
    }
    return rk_driver_start(&sender->future, sender->driver, &call);
}

static struct rk_status *time_beside(double **out, int64_t count, struct sender *sender,
                                     struct session *asking)
{
    double *seconds = rk_calloc((size_t)count, sizeof(*seconds));
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < count && !st; i++) {
        int64_t begin_ns;

        st = keep_sending(sender);
        if (st)
            break;
        begin_ns = rk_time_now_ns();
        st = get_status(asking);
        seconds[i] = (double)(rk_time_now_ns() - begin_ns) * 1e-9;
    }
    rk_future_drop(sender->future);
    if (st) {
        rk_free(seconds);
        return st;
    }
    qsort(seconds, (size_t)count, sizeof(*seconds), compare_doubles);
    *out = seconds;
    return NULL;
}

struct rk_status *bench_run_rpc_beside(struct bench_ctx *ctx, const struct bench_case *bench,
                                       struct bench_result *result)
{
    const int64_t *dims = bench_dims(ctx, bench);
    struct session session, asking = {0};
    struct sender sender = {0};
    struct load load = {0};
    double *seconds = NULL;
    struct rk_status *st = open_for_batches(&session, dims);

    snprintf(result->shape, sizeof(result->shape), "GetStatus during batches of %lld MiB over %s",
             (long long)dims[3] >> 20, bench_transport_name((bench_transport_t)dims[0]));
    if (!st)
        st = load_init(&load, dims[3]);
    if (!st) {
        sender = (struct sender){.driver = session.driver, .load = &load};
        st = open_driver(&asking.driver, session.daemons, 1);
    }
    if (!st)
        st = time_beside(&seconds, dims[2], &sender, &asking);
    if (!st) {
        result->measured = quantile(seconds, dims[2], 0.99) * 1e6;
        result->bound = 20e3;
        snprintf(result->note, sizeof(result->note),
                 "p99; median %.0f us, longest %.0f us; %lld batches (must 20,000 us)",
                 quantile(seconds, dims[2], 0.5) * 1e6, seconds[dims[2] - 1] * 1e6,
                 (long long)sender.num_sent);
    }
    rk_free(seconds);
    rk_driver_close(asking.driver);
    load_fini(&load);
    session_close(&session);
    return st;
}
