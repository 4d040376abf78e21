/* A reward program for the tests: reads protocol 2 and does with each item what its solution_str says, "WORD"
 * or "WORD:VALUE", as the table below has it.
 *
 *   reward_worker [MODE [FILE]]
 *
 * The modes mute, old and sorry change its answer to the hello. In mode reverse it answers the items of a
 * line from the last to the first. In mode child it starts a process that outlives it and writes both process
 * ids to FILE; in mode chatty it writes long lines to standard error, in mode loud many with control
 * characters; in mode once it ends without a hello when FILE is there, else it makes the file.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

/* LeakSanitizer's check at every exit takes longer than the protocol tests. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

struct request {
    int64_t id;
    const char *value; /* "" without one */
    const struct rk_json *item;
};

static void say(const char *line)
{
    fputs(line, stdout);
    fputc('\n', stdout);
    fflush(stdout);
}

static void answer(const struct request *request, const char *members)
{
    char *line = rk_format("{\"id\": %lld%s%s}", (long long)request->id, *members ? ", " : "", members);

    say(line);
    rk_free(line);
}

static void do_score(const struct request *request)
{
    char *members = rk_format("\"score\": %s", request->value);

    answer(request, members);
    rk_free(members);
}

/* Sleeps for the value in milliseconds, which is also the score. */
static void do_sleep(const struct request *request)
{
    rk_time_sleep_ms(strtol(request->value, NULL, 10));
    do_score(request);
}

/* The number of received bytes of the solution, and how many of them are NUL. */
static void do_bytes(const struct request *request)
{
    const struct rk_json *solution = rk_json_find(request->item, "solution_str");
    const char *text = rk_json_as_string(solution, "");
    size_t bytes = rk_json_string_bytes(solution), num_nul = 0;
    char *members;

    for (size_t i = 0; i < bytes; i++)
        num_nul += text[i] == '\0';
    members = rk_format("\"score\": %zu, \"num_nul\": %zu", bytes, num_nul);
    answer(request, members);
    rk_free(members);
}

/* All members of an item, as texts in addition to the score. */
static void do_echo(const struct request *request)
{
    static const char *const names[] = {"data_source", "prompt", "ground_truth"};
    struct rk_str members = {0};
    char *extra_info = rk_json_dump(rk_json_find(request->item, "extra_info"), 0, true);
    struct rk_json *quoted = rk_json_new_string(extra_info);
    char *text = rk_json_dump(quoted, 0, false);

    rk_str_appendf(&members, "\"score\": 1, \"extra_info\": %s", text);
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        char *value = rk_json_dump(rk_json_find(request->item, names[i]), 0, false);

        rk_str_appendf(&members, ", \"%s\": %s", names[i], value);
        rk_free(value);
    }
    answer(request, rk_str_text(&members));
    rk_free(text);
    rk_json_free(quoted);
    rk_free(extra_info);
    rk_str_fini(&members);
}

static void do_raw(const struct request *request)
{
    answer(request, request->value);
}

static void do_exit(const struct request *request)
{
    exit((int)strtol(request->value, NULL, 10));
}

static void do_kill(const struct request *request)
{
    (void)request;
    raise(SIGKILL);
}

static void do_hang(const struct request *request)
{
    (void)request;
    for (;;)
        pause();
}

static void do_close(const struct request *request)
{
    (void)request;
    close(STDOUT_FILENO);
    sleep(30);
}

static void do_garbage(const struct request *request)
{
    say(*request->value ? request->value : "hello");
}

static void do_twice(const struct request *request)
{
    do_score(request);
    do_score(request);
}

static void do_flood(const struct request *request)
{
    (void)request;
    for (;;)
        (void)fwrite("0123456789abcdef", 16, 1, stdout);
}

static const struct {
    const char *word;
    void (*act)(const struct request *request);
} acts[] = {
    {"score", do_score}, {"sleep", do_sleep},     {"bytes", do_bytes}, {"echo", do_echo},
    {"raw", do_raw},     {"exit", do_exit},       {"kill", do_kill},   {"hang", do_hang},
    {"close", do_close}, {"garbage", do_garbage}, {"twice", do_twice}, {"flood", do_flood},
};

static void serve(const struct rk_json *item)
{
    const char *text = rk_json_as_string(rk_json_find(item, "solution_str"), "");
    size_t bytes = strcspn(text, ":");
    struct request request = {.id = rk_json_as_int(rk_json_find(item, "id"), -1),
                              .value = text[bytes] ? text + bytes + 1 : "",
                              .item = item};

    for (size_t i = 0; i < RK_ARRAY_LEN(acts); i++) {
        if (strlen(acts[i].word) == bytes && strncmp(acts[i].word, text, bytes) == 0)
            acts[i].act(&request);
    }
}

static void serve_line(const char *line, ssize_t line_bytes, bool is_reverse)
{
    struct rk_json *message = NULL;
    const struct rk_json *items;
    int64_t count;

    rk_status_free(rk_json_parse(&message, line, (size_t)line_bytes, "line", RK_JSON_ALLOW_NUL));
    items = rk_json_find(message, "items");
    count = rk_json_count(items);
    for (int64_t i = 0; i < count; i++)
        serve(rk_json_at(items, is_reverse ? count - 1 - i : i));
    rk_json_free(message);
}

static void say_hello(const char *mode)
{
    if (strcmp(mode, "old") == 0)
        say("{\"score\": 0.5}");
    else if (strcmp(mode, "sorry") == 0)
        say("{\"hello\": 2, \"error\": \"there is no model\"}");
    else if (strcmp(mode, "mute") != 0)
        say("{\"hello\": 2, \"name\": \"reward_worker\"}");
}

/* A child in the worker's process group that inherits its output; runs until it is killed. */
static void start_child(const char *path)
{
    FILE *file;
    pid_t pid = fork();

    if (pid == 0)
        do_hang(NULL);
    file = fopen(path, "a");
    fprintf(file, "%d\n%d\n", (int)getpid(), (int)pid);
    fclose(file);
}

/* False if the file already exists. */
static bool make_file(const char *path)
{
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "ok";
    char *line = NULL;
    size_t capacity = 0;
    ssize_t bytes;

    if (getline(&line, &capacity, stdin) <= 0)
        return 1;
    if (strcmp(mode, "child") == 0)
        start_child(argv[2]);
    if (strcmp(mode, "chatty") == 0)
        fprintf(stderr, "first\n%*s\nlast", 10000, "long");
    for (int i = 0; strcmp(mode, "loud") == 0 && i < 100000; i++)
        fputs("\033[31mred\tline \302\2335m \233 \303\251\n", stderr);
    if (strcmp(mode, "once") == 0 && !make_file(argv[2]))
        return 7;
    say_hello(mode);
    while ((bytes = getline(&line, &capacity, stdin)) > 0)
        serve_line(line, bytes, strcmp(mode, "reverse") == 0);
    return 0;
}
