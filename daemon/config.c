#include "daemon/config_internal.h"

#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_env.h"
#include "base/rk_file.h"
#include "daemon/config_keys.def"
#include "daemon/lease_internal.h"
#include "daemon/rk_daemon.h"
#include "proto/limits.h"

static const struct rk_config_key keys[] = {
#define X(path_, type_, default_, min_, max_, choices_, flags_, help_) \
    {.path = (path_),                                                  \
     .type = RK_CONFIG_##type_,                                        \
     .default_text = (default_),                                       \
     .min = (double)(min_),                                            \
     .max = (double)(max_),                                            \
     .choices = (choices_),                                            \
     .flags = (flags_),                                                \
     .help = (help_)},
    RK_DAEMON_KEY_TABLE(X)
#undef X
};

const struct rk_config_key *rk_daemon_config_keys(int64_t *count)
{
    *count = RK_ARRAY_LEN(keys);
    return keys;
}

void rk_daemon_config_format_keys(struct rk_str *out)
{
    rk_config_format_keys(keys, RK_ARRAY_LEN(keys), out);
}

/* First entry of a directory list that systemd sets ("/run/rankd/0:/run/other"); NULL when unset. rk_free it.
 */
static char *service_dir(const char *name)
{
    const char *list = rk_env(name);

    return list && list[0] == '/' ? rk_strndup(list, strcspn(list, ":")) : NULL;
}

/* --- problems --- */

void rk_problems_add(struct rk_problems *problems, const char *origin, struct rk_status *st)
{
    if (!st)
        return;
    rk_str_appendf(&problems->text, "%s%s%s%s", problems->text.bytes > 0 ? "\n" : "", origin ? origin : "",
                   origin ? ": " : "", rk_status_message(st));
    if (rk_status_code(st) != RK_UNAVAILABLE)
        problems->code = RK_INVALID_ARGUMENT;
    else if (!problems->code)
        problems->code = RK_UNAVAILABLE;
    rk_status_free(st);
}

struct rk_status *rk_problems_finish(struct rk_problems *problems)
{
    struct rk_status *st =
        problems->code ? RK_FAIL(problems->code, "%s", rk_str_text(&problems->text)) : NULL;

    rk_str_fini(&problems->text);
    *problems = (struct rk_problems){0};
    return st;
}

/* --- checks beyond the table: each reader reports its problems, and continues --- */

/* The origin of the key, and the problem. */
static void add_problem(struct rk_problems *problems, const struct rk_config *config, const char *key,
                        struct rk_status *st)
{
    rk_problems_add(problems, rk_config_origin(config, key), st);
}

static void read_listen(struct rk_settings *out, const struct rk_config *config, struct rk_problems *problems)
{
    const char *text = rk_config_string(config, "rpc.listen");
    struct rk_status *st;
    char *chosen;

    if (text)
        chosen = rk_strdup(text);
    else if (out->runtime_dir)
        chosen = rk_format("unix:%s/rankd.sock", out->runtime_dir);
    else
        chosen = rk_strdup("127.0.0.1:0");
    st = rk_listen_parse(&out->listen, "rpc.listen", chosen);
    rk_free(chosen);
    if (!st)
        st = rk_listen_check_policy(&out->listen, out->is_insecure, out->tls_cert != NULL,
                                    out->asks_certificates, out->token_file != NULL);
    add_problem(problems, config, "rpc.listen", st);
}

static char *read_path(const struct rk_config *config, const char *key, struct rk_problems *problems)
{
    const char *text = rk_config_string(config, key);
    struct rk_status *st;

    if (text && !*text)
        add_problem(problems, config, key,
                    RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected a path, got \"\"", key));
    else if (text && (st = rk_path_check(text, true)) != NULL)
        add_problem(problems, config, key, RK_WRAP(st, "%s", key));
    return text ? rk_strdup(text) : NULL;
}

static void read_tls(struct rk_settings *out, const struct rk_config *config, struct rk_problems *problems)
{
    static const char *const keys_of_files[] = {"rpc.tls_cert", "rpc.tls_key", "rpc.tls_ca"};
    bool requires = strcmp(rk_config_string(config, "rpc.tls_client_auth"), "require") == 0;

    out->asks_certificates = out->tls_ca && requires;
    for (size_t i = 0; i < RK_ARRAY_LEN(keys_of_files); i++)
        rk_free(read_path(config, keys_of_files[i], problems));
    if (!out->tls_cert != !out->tls_key)
        add_problem(problems, config, out->tls_cert ? "rpc.tls_cert" : "rpc.tls_key",
                    RK_FAIL(RK_INVALID_ARGUMENT, "rpc.tls_%s: expected together with rpc.tls_%s",
                            out->tls_cert ? "cert" : "key", out->tls_cert ? "key" : "cert"));
    else if (out->tls_ca && !out->tls_cert)
        add_problem(
            problems, config, "rpc.tls_ca",
            RK_FAIL(RK_INVALID_ARGUMENT, "rpc.tls_ca: expected together with rpc.tls_cert and rpc.tls_key"));
}

/* A listener that is off unless it is configured. */
static void read_other_listen(struct rk_listen *out, const char *key, const struct rk_listen *rpc,
                              const struct rk_config *config, struct rk_problems *problems)
{
    const char *text = rk_config_string(config, key);
    struct rk_status *st;

    if (!text)
        return;
    st = rk_listen_parse(out, key, text);
    if (!st && rk_listen_is_same(out, rpc))
        st = RK_FAIL(RK_INVALID_ARGUMENT, "%s '%s': is also the address of %s", key, text, rpc->key);
    if (st)
        *out = (struct rk_listen){0};
    add_problem(problems, config, key, st);
}

/* Metrics are less secret than tokens, but their owner must decide to publish them. */
static void read_metrics_listen(struct rk_settings *out, const struct rk_config *config,
                                struct rk_problems *problems)
{
    const struct rk_listen *metrics = &out->metrics;
    struct rk_status *st = NULL;

    read_other_listen(&out->metrics, "metrics.listen", &out->listen, config, problems);
    if (!metrics->key)
        return;
    if (!metrics->is_local && !out->is_insecure && !rk_config_bool(config, "metrics.insecure"))
        st = RK_FAIL(
            RK_INVALID_ARGUMENT,
            "metrics.listen: %s can be reached from other hosts, and the metrics need no token and are "
            "not encrypted; listen on 127.0.0.1, ::1 or a Unix socket, or set metrics.insecure if the "
            "network is trusted",
            metrics->host);
    else if (out->health.key && rk_listen_is_same(metrics, &out->health))
        st = RK_FAIL(RK_INVALID_ARGUMENT, "metrics.listen: is also the address of health.listen");
    add_problem(problems, config, "metrics.listen", st);
}

/* The host of rpc.listen, which was parsed: a certificate may contain the name, and not its address. */
static char *host_as_written(const struct rk_config *config)
{
    const char *text = rk_config_string(config, "rpc.listen"), *colon = strrchr(text, ':');
    bool has_brackets = text[0] == '[';

    return rk_strndup(text + has_brackets, (size_t)(colon - text) - 2 * has_brackets);
}

/* The address to which the peers' collectives connect. Ranks on one host need no network; with a network
 * address for calls, the ranks are on several hosts. */
static void read_comm_listen(struct rk_settings *out, const struct rk_config *config,
                             struct rk_problems *problems)
{
    const char *text = rk_config_string(config, "comm.listen"), *tls = rk_config_string(config, "comm.tls");

    out->has_comm_tls = strcmp(tls, "on") == 0 || (strcmp(tls, "auto") == 0 && out->tls_ca);
    if (out->has_comm_tls && !out->tls_ca)
        add_problem(problems, config, "comm.tls",
                    RK_FAIL(RK_INVALID_ARGUMENT, "comm.tls: \"on\" is expected together with rpc.tls_cert, "
                                                 "rpc.tls_key and rpc.tls_ca"));
    if (text)
        out->comm_listen = rk_strdup(text);
    else if (out->listen.is_local || !out->listen.host[0])
        out->comm_listen = rk_strdup("unix");
    else
        out->comm_listen = out->has_comm_tls ? host_as_written(config) : rk_strdup(out->listen.host);
    if (strcmp(out->comm_listen, "unix") != 0)
        add_problem(problems, config, "comm.listen", rk_listen_check_peer_host(out->comm_listen));
}

static void read_device(struct rk_settings *out, const struct rk_config *config, struct rk_problems *problems)
{
    const char *colon;
    int64_t index = 0;

    out->device = rk_strdup(rk_config_string(config, "device"));
    colon = strchr(out->device, ':');
    if (!out->device[0] || colon == out->device ||
        (colon && (!rk_parse_i64(colon + 1, &index) || index < 0 || index > INT32_MAX)))
        add_problem(
            problems, config, "device",
            RK_FAIL(RK_INVALID_ARGUMENT, "device: expected NAME or NAME:INDEX, got \"%s\"", out->device));
}

static void read_roots(struct rk_settings *out, const struct rk_config *config, struct rk_problems *problems)
{
    const struct rk_json *list = rk_config_json(config, "ckpt.roots");
    int64_t count = rk_json_count(list);

    out->ckpt_roots = rk_calloc((size_t)count + 1, sizeof(*out->ckpt_roots));
    for (int64_t i = 0; i < count; i++) {
        const struct rk_json *item = rk_json_at(list, i);
        const char *root = rk_json_as_string(item, "");
        char *text = rk_json_dump(item, 0, false);

        if (root[0] != '/')
            add_problem(problems, config, "ckpt.roots",
                        RK_FAIL(RK_INVALID_ARGUMENT, "ckpt.roots.%lld: expected an absolute path, got %s",
                                (long long)i, text));
        out->ckpt_roots[i] = rk_strdup(root);
        rk_free(text);
    }
}

static void take_string(char **to, const struct rk_config *config, const char *key)
{
    rk_free(*to);
    *to = rk_strdup(rk_config_string(config, key));
}

void rk_settings_reload(struct rk_settings *settings, const struct rk_config *config)
{
    const char *format = rk_config_string(config, "log.format");
    bool is_known = rk_log_level_parse(rk_config_string(config, "log.level"), &settings->log_level);

    RK_ASSERT(is_known);
    take_string(&settings->token_file, config, "rpc.token_file");
    take_string(&settings->tls_cert, config, "rpc.tls_cert");
    take_string(&settings->tls_key, config, "rpc.tls_key");
    take_string(&settings->tls_ca, config, "rpc.tls_ca");
    settings->lease_ttl_ms = rk_config_int(config, "lease.ttl");
    settings->lease_grace_ms = rk_config_int(config, "lease.grace");
    settings->drain_grace_ms = rk_config_int(config, "drain.grace");
    settings->log_format = strcmp(format, "json") == 0   ? RK_LOG_JSON
                           : strcmp(format, "text") == 0 ? RK_LOG_TEXT
                                                         : RK_LOG_AUTO;
}

struct rk_status *rk_settings_init(struct rk_settings *out, const struct rk_config *config)
{
    struct rk_problems problems = {0};

    *out = (struct rk_settings){0};
    rk_settings_reload(out, config);
    out->is_insecure = rk_config_bool(config, "rpc.insecure");
    out->max_inflight_bytes = rk_config_int(config, "rpc.max_inflight");
    out->chunk_bytes = rk_config_int(config, "rpc.chunk");
    read_device(out, config, &problems);
    out->plugin = read_path(config, "plugin", &problems);
    out->num_threads = (int32_t)rk_config_int(config, "cpu.num_threads");
    out->is_dry_run = rk_config_bool(config, "dry_run");
    out->slot = (int32_t)rk_config_int(config, "slot");
    out->state_dir = read_path(config, "state.dir", &problems);
    if (!out->state_dir)
        out->state_dir = service_dir("STATE_DIRECTORY");
    out->flight_dir = read_path(config, "flight.dir", &problems);
    if (!out->flight_dir)
        out->flight_dir = service_dir("LOGS_DIRECTORY");
    if (!out->flight_dir)
        out->flight_dir = rk_strdup(out->state_dir);
    out->runtime_dir = service_dir("RUNTIME_DIRECTORY");
    out->collective_timeout_ms = rk_config_int(config, "watchdog.collective");
    out->idle_progress_ms = rk_config_int(config, "watchdog.idle_progress");
    out->engine_grace_ms = rk_config_int(config, "watchdog.engine_grace");
    out->comm_progress_timeout_ms = rk_config_int(config, "comm.progress_timeout");
    if (!rk_config_is_null(config, "limits.device_memory"))
        out->device_memory_bytes = (uint64_t)rk_config_int(config, "limits.device_memory");
    out->record_dir = read_path(config, "record.dir", &problems);
    read_roots(out, config, &problems);
    read_tls(out, config, &problems);
    read_listen(out, config, &problems);
    read_other_listen(&out->health, "health.listen", &out->listen, config, &problems);
    read_metrics_listen(out, config, &problems);
    out->has_reflection = rk_config_is_null(config, "rpc.reflection")
                              ? out->listen.is_local
                              : rk_config_bool(config, "rpc.reflection");
    read_comm_listen(out, config, &problems);
    return rk_problems_finish(&problems);
}

void rk_settings_fini(struct rk_settings *settings)
{
    for (char **root = settings->ckpt_roots; root && *root; root++)
        rk_free(*root);
    rk_free(settings->ckpt_roots);
    rk_free(settings->record_dir);
    rk_free(settings->comm_listen);
    rk_free(settings->runtime_dir);
    rk_free(settings->state_dir);
    rk_free(settings->flight_dir);
    rk_free(settings->plugin);
    rk_free(settings->device);
    rk_free(settings->token_file);
    rk_free(settings->tls_cert);
    rk_free(settings->tls_key);
    rk_free(settings->tls_ca);
    *settings = (struct rk_settings){0};
}

struct rk_status *rk_daemon_config_load(struct rk_config **out, const struct rk_daemon_args *args)
{
    static const char *const env_known[] = {"RANKD_FAULTS", NULL}; /* base/rk_fault.h */
    struct rk_config_source source = {
        .keys = keys,
        .num_keys = RK_ARRAY_LEN(keys),
        .file = args->config_file,
        .env_prefix = "RANKD",
        .env_known = env_known,
        .overrides = args->overrides,
        .num_overrides = args->num_overrides,
    };
    struct rk_settings settings;
    struct rk_status *st;

    if (!source.file && access(RK_DAEMON_CONFIG_FILE, F_OK) == 0)
        source.file = RK_DAEMON_CONFIG_FILE;
    RK_TRY(rk_config_load(out, &source));
    /* Checks beyond the table are made while its values are read. */
    st = rk_settings_init(&settings, *out);
    rk_settings_fini(&settings);
    if (st) {
        rk_config_destroy(*out);
        *out = NULL;
    }
    return st;
}
