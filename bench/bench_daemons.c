/* Daemons of a benchmark, in a temporary directory that is removed with them. */
#include "bench/bench_rpc.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/net/rk_certs.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/rk_file.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "bench/raw_grpc.h"

#define LISTENING "rankd: listening on "
#define ARGS_MAX  8
#define HOUR_S    3600

struct bench_daemons {
    char dir[32];
    int32_t count, num_started;
    pid_t *pids;
    char **addresses;
    char *cert, *key, *ca; /* of mutual TLS, the same on both sides; NULL without TLS */
};

const char *bench_transport_name(bench_transport_t transport)
{
    static const char *const names[] = {"TCP", "a Unix socket", "mutual TLS"};

    return names[transport];
}

const char *const *bench_daemons_addresses(const struct bench_daemons *daemons)
{
    return (const char *const *)daemons->addresses;
}

struct rk_tls_files bench_daemons_tls_files(const struct bench_daemons *daemons)
{
    return (struct rk_tls_files){.cert = daemons->cert, .key = daemons->key, .ca = daemons->ca};
}

/* Path of the rankd that was built or installed with this program; rk_free it. */
static char *find_program(void)
{
    char path[4096];
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *slash;

    path[bytes > 0 ? bytes : 0] = '\0';
    slash = strrchr(path, '/');
    return slash ? rk_format("%.*s/rankd", (int)(slash - path), path) : rk_strdup("rankd");
}

static void exec_daemon(char *const *args, int out, pid_t parent)
{
    int null = open("/dev/null", O_RDWR);

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || dup2(null, STDIN_FILENO) < 0 ||
        dup2(out, STDOUT_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0)
        _exit(127);
    execv(args[0], args);
    _exit(127);
}

static struct rk_status *read_address(char **out, int fd)
{
    FILE *stream = fdopen(fd, "r");
    char line[256] = "";
    struct rk_status *st = NULL;

    if (!stream || !fgets(line, sizeof(line), stream) || !rk_str_has_prefix(line, LISTENING))
        st = RK_FAIL(RK_INTERNAL, "rankd did not start; run it manually to see the error");
    else
        *out = rk_format("%.*s", (int)strcspn(line + strlen(LISTENING), "\n"), line + strlen(LISTENING));
    if (stream)
        fclose(stream);
    else
        close(fd);
    return st;
}

static struct rk_status *start_one(struct bench_daemons *daemons, char *const *args)
{
    int32_t i = daemons->num_started;
    pid_t parent = getpid();
    int out[2];

    if (pipe2(out, O_CLOEXEC) != 0)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "starting a daemon: %s", strerror(errno));
    daemons->pids[i] = fork();
    if (daemons->pids[i] == 0)
        exec_daemon(args, out[1], parent);
    close(out[1]);
    if (daemons->pids[i] < 0) {
        close(out[0]);
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "starting a daemon: %s", strerror(errno));
    }
    daemons->num_started++;
    return read_address(&daemons->addresses[i], out[0]);
}

static struct rk_status *start_next(struct bench_daemons *daemons, bench_transport_t transport)
{
    char *program = find_program();
    char *config = rk_format("--config=%s/rankd.json", daemons->dir);
    char *listen = transport == BENCH_UNIX
                       ? rk_format("--rpc.listen=unix:%s/%d.sock", daemons->dir, daemons->num_started)
                       : rk_strdup("--rpc.listen=127.0.0.1:0");
    char threads[] = "--cpu.num_threads=1";
    char *cert = daemons->cert ? rk_format("--rpc.tls_cert=%s", daemons->cert) : NULL;
    char *key = daemons->cert ? rk_format("--rpc.tls_key=%s", daemons->key) : NULL;
    char *ca = daemons->cert ? rk_format("--rpc.tls_ca=%s", daemons->ca) : NULL;
    char *const args[ARGS_MAX] = {program, config, listen, threads, cert, key, ca};
    struct rk_status *st = start_one(daemons, args);

    rk_free(program);
    rk_free(config);
    rk_free(listen);
    rk_free(cert);
    rk_free(key);
    rk_free(ca);
    return st;
}

/* This program, as the server of the rows that measure gRPC alone. */
static struct rk_status *start_raw(struct bench_daemons *daemons, bench_transport_t transport)
{
    char program[] = "/proc/self/exe", command[] = BENCH_RAW_COMMAND;
    char *address =
        transport == BENCH_UNIX ? rk_format("unix:%s/raw.sock", daemons->dir) : rk_strdup("127.0.0.1:0");
    char *const args[ARGS_MAX] = {program, command, address, daemons->cert, daemons->key, daemons->ca};
    struct rk_status *st = start_one(daemons, args);

    rk_free(address);
    return st;
}

static struct rk_status *make_dir(struct bench_daemons *daemons)
{
    struct rk_status *st;
    char *path;

    snprintf(daemons->dir, sizeof(daemons->dir), "/tmp/rankd-bench-XXXXXX");
    if (!mkdtemp(daemons->dir)) {
        daemons->dir[0] = '\0';
        return RK_FAIL(RK_INTERNAL, "cannot create a directory in /tmp: %s", strerror(errno));
    }
    path = rk_path_join(daemons->dir, "rankd.json");
    st = rk_write_file_atomic(path, "{}\n", 3);
    rk_free(path);
    return st;
}

static struct rk_status *write_file(char **path, const struct bench_daemons *daemons, const char *name,
                                    const char *text)
{
    *path = rk_path_join(daemons->dir, name);
    RK_TRY(rk_write_file_atomic(*path, text, strlen(text)));
    return chmod(*path, 0600) == 0 ? NULL : RK_FAIL(RK_INTERNAL, "chmod '%s': %s", *path, strerror(errno));
}

/* Creates an authority and one certificate for both sides. */
static struct rk_status *make_certs(struct bench_daemons *daemons)
{
    static const char *const names[] = {"127.0.0.1"};
    int64_t now_s = time(NULL);
    struct rk_cert_spec spec = {
        .common_name = "bench authority", .from_s = now_s - HOUR_S, .until_s = now_s + HOUR_S};
    struct rk_cert authority = {0}, host = {0};
    struct rk_status *st = rk_cert_make(&authority, &spec, NULL);

    spec.use = RK_CERT_HOST;
    spec.common_name = names[0];
    spec.names = names;
    spec.num_names = 1;
    if (!st)
        st = rk_cert_make(&host, &spec, &authority);
    if (!st)
        st = write_file(&daemons->ca, daemons, "ca.crt", authority.cert);
    if (!st)
        st = write_file(&daemons->cert, daemons, "host.crt", host.cert);
    if (!st)
        st = write_file(&daemons->key, daemons, "host.key", host.key);
    rk_cert_fini(&authority);
    rk_cert_fini(&host);
    return st;
}

/* Before any of them has been started. */
static struct rk_status *prepare(struct bench_daemons **out, bench_transport_t transport, int32_t count)
{
    struct bench_daemons *daemons = rk_calloc(1, sizeof(*daemons));

    daemons->count = count;
    daemons->pids = rk_calloc((size_t)count, sizeof(*daemons->pids));
    daemons->addresses = rk_calloc((size_t)count, sizeof(*daemons->addresses));
    *out = daemons;
    RK_TRY(make_dir(daemons));
    return transport == BENCH_TLS ? make_certs(daemons) : NULL;
}

struct rk_status *bench_daemons_start(struct bench_daemons **out, bench_transport_t transport, int32_t count)
{
    RK_TRY(prepare(out, transport, count));
    for (int32_t i = 0; i < count; i++)
        RK_TRY(start_next(*out, transport));
    return NULL;
}

struct rk_status *bench_daemons_start_raw(struct bench_daemons **out, bench_transport_t transport)
{
    RK_TRY(prepare(out, transport, 1));
    return start_raw(*out, transport);
}

void bench_daemons_stop(struct bench_daemons *daemons)
{
    if (!daemons)
        return;
    for (int32_t i = 0; i < daemons->num_started; i++) {
        (void)kill(daemons->pids[i], SIGKILL);
        (void)waitpid(daemons->pids[i], NULL, 0);
        rk_free(daemons->addresses[i]);
    }
    if (daemons->dir[0])
        RK_IGNORE(rk_ckpt_remove(daemons->dir), "leftover files are in /tmp");
    rk_free(daemons->pids);
    rk_free(daemons->addresses);
    rk_free(daemons->cert);
    rk_free(daemons->key);
    rk_free(daemons->ca);
    rk_free(daemons);
}
