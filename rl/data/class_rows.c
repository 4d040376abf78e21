#include "rl/data/class_rows.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_compiler.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "base/rk_child.h"
#include "base/rk_file.h"
#include "rl/rk_share.h"

#define SCRIPT "python/rankd_dataset.py"

/* An unnamed file with the request, at its beginning; -1 on failure. */
static int write_request(const struct rk_class_rows *rows)
{
    struct rk_json *request = rk_json_new_object(), *files = rk_json_new_array();
    FILE *file = tmpfile();
    int fd = -1;
    char *text;

    for (const char *const *path = rows->files; *path; path++)
        rk_json_append(files, rk_json_new_string(*path));
    rk_json_set(request, "files", files);
    rk_json_set(request, "config", rk_json_clone(rows->config));
    if (rows->tokenizer_dir)
        rk_json_set(request, "tokenizer", rk_json_new_string(rows->tokenizer_dir));
    text = rk_json_dump(request, 0, false);
    if (file && fputs(text, file) >= 0 && fflush(file) == 0) {
        rewind(file);
        fd = dup(fileno(file));
    }
    if (file)
        fclose(file);
    rk_free(text);
    rk_json_free(request);
    return fd;
}

/* Creates an empty file that other users cannot replace; *out receives its path (rk_free). */
static struct rk_status *make_file(char **out)
{
    const char *temp = rk_env("TMPDIR");
    char *path = rk_format("%s/rankd-rows-XXXXXX", temp ? temp : "/tmp");
    int fd = mkstemp(path);

    *out = path;
    if (fd >= 0) {
        close(fd);
        return NULL;
    }
    *out = NULL;
    rk_free(path);
    return rk_file_errno("cannot create a file in", temp ? temp : "/tmp");
}

static struct rk_status *check_exit(pid_t pid, const struct rk_class_rows *rows)
{
    int status = 0;

    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return rk_file_errno("waiting for", rows->python);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return NULL;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return RK_FAIL(RK_FAILED_PRECONDITION, "cannot run '%s'; reward.python names another interpreter",
                       rows->python);
    return RK_FAIL(RK_FAILED_PRECONDITION, "class %s of '%s' has failed (%s %d); Python has said why above",
                   rows->name, rows->path, WIFEXITED(status) ? "exit code" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static struct rk_status *run(const struct rk_class_rows *rows, const char *script, const char *out,
                             int request)
{
    static const int reset[] = {SIGINT, SIGTERM, SIGPIPE};
    const char *argv[] = {rows->python, script,  "--path", rows->path, "--name",
                          rows->name,   "--out", out,      NULL};
    pid_t parent = getpid(), pid = fork();

    if (pid < 0)
        return rk_file_errno("cannot start", rows->python);
    if (pid == 0) {
        rk_child_begin(parent, reset, RK_ARRAY_LEN(reset));
        dup2(request, STDIN_FILENO);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    return check_exit(pid, rows);
}

struct rk_status *rk_class_rows_write(char **out, const struct rk_class_rows *rows)
{
    struct rk_status *st = NULL;
    char *script;
    int request;

    *out = NULL;
    RK_TRY(rk_share_find(&script, SCRIPT));
    request = write_request(rows);
    if (request < 0)
        st = rk_file_errno("cannot write", "the request for the dataset class");
    if (!st)
        st = make_file(out);
    if (!st)
        st = run(rows, script, *out, request);
    if (st && *out) {
        unlink(*out);
        rk_free(*out);
        *out = NULL;
    }
    if (request >= 0)
        close(request);
    rk_free(script);
    return st;
}
