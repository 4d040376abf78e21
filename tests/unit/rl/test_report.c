/* Reports are well-formed HTML with any content (charts, texts of models, long runs), have the values of the
 * run, and are written at the right times. Charts are drawn by report.js, which runs here if Node.js or
 * QuickJS is installed. */
#include "rl/report/report_internal.h"

#include <ctype.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "base/rk_small_file.h"
#include "rl/rk_job.h"
#include "rl/rk_loggers.h"
#include "tests/support/proc.h"
#include "tests/support/test.h"

#define DEPTH_MAX      16
#define NAME_MAX_BYTES 32

/* The part of HTML that the writer uses: a doctype, elements, attributes in double quotes or without value,
 * text, four entities, <meta> without end, <style> and <script> with anything. */
struct html {
    const char *at;
    char open[DEPTH_MAX][NAME_MAX_BYTES];
    int depth;
};

static bool read_name(struct html *html, char *name)
{
    size_t bytes = strspn(html->at, "abcdefghijklmnopqrstuvwxyz0123456789");

    if (bytes == 0 || bytes >= NAME_MAX_BYTES)
        return false;
    memcpy(name, html->at, bytes);
    name[bytes] = '\0';
    html->at += bytes;
    return true;
}

/* Text up to `end`, with its entities. */
static bool read_text(struct html *html, char end)
{
    static const char *const entities[] = {"&lt;", "&gt;", "&amp;", "&quot;"};

    while (*html->at && *html->at != end) {
        bool is_entity = false;

        if (*html->at == '<' || ((unsigned char)*html->at < 0x20 && *html->at != '\n' && *html->at != '\t'))
            return false;
        for (size_t i = 0; i < RK_ARRAY_LEN(entities); i++)
            is_entity |= strncmp(html->at, entities[i], strlen(entities[i])) == 0;
        if (*html->at == '&' && !is_entity)
            return false;
        html->at++;
    }
    return *html->at == end;
}

static bool read_attributes(struct html *html)
{
    while (isspace((unsigned char)*html->at)) {
        html->at += strspn(html->at, " \n");
        if (*html->at == '/' || *html->at == '>')
            return true;
        html->at += strspn(html->at, "abcdefghijklmnopqrstuvwxyzBTUV0123456789-");
        if (*html->at != '=')
            continue;
        if (html->at[1] != '"')
            return false;
        html->at += 2;
        if (!read_text(html, '"'))
            return false;
        html->at++;
    }
    return true;
}

static bool skip_char(struct html *html, char c)
{
    bool is_next = *html->at == c;

    html->at += is_next;
    return is_next;
}

static bool skip_past(struct html *html, const char *end)
{
    const char *found = strstr(html->at, end);

    html->at = found ? found + strlen(end) : html->at;
    return found != NULL;
}

static bool read_start(struct html *html)
{
    char name[NAME_MAX_BYTES];
    bool is_void;

    if (!read_name(html, name) || !read_attributes(html))
        return false;
    is_void = *html->at == '/' || strcmp(name, "meta") == 0;
    html->at += *html->at == '/';
    if (!skip_char(html, '>'))
        return false;
    if (strcmp(name, "style") == 0)
        return skip_past(html, "</style>");
    if (strcmp(name, "script") == 0)
        return skip_past(html, "</script>");
    if (!is_void && html->depth == DEPTH_MAX)
        return false;
    if (!is_void)
        memcpy(html->open[html->depth++], name, sizeof(name));
    return true;
}

static bool read_tag(struct html *html)
{
    char name[NAME_MAX_BYTES];

    html->at++; /* '<' */
    if (*html->at == '!')
        return skip_past(html, ">");
    if (*html->at != '/')
        return read_start(html);
    html->at++;
    if (!read_name(html, name) || html->depth == 0 || strcmp(name, html->open[--html->depth]) != 0)
        return false;
    return skip_char(html, '>');
}

/* The first position at which the document is not well formed, or NULL. */
static const char *find_fault(const char *text)
{
    struct html html = {.at = text};

    while (*html.at) {
        bool is_good = *html.at == '<'                       ? read_tag(&html)
                       : *html.at == '\n' && html.depth == 0 ? (html.at++, true)
                                                             : read_text(&html, '<');

        if (!is_good)
            return *html.at ? html.at : "the end";
    }
    return html.depth > 0 ? "the end" : NULL;
}

static void assert_well_formed(const char *text)
{
    const char *fault = find_fault(text);

    if (fault)
        fail_msg("not well-formed at: %.60s", fault);
}

static void assert_shows(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is missing", part);
}

/* Goal: the checker above finds faults. */
static void test_find_fault_broken_documents_are_found(void **state)
{
    static const char *const broken[] = {"<a>",          "</a>", "<a><b></a></b>", "<a x=1/>",   "<a>&</a>",
                                         "<a b=\"<\"/>", "<a/",  "<script>",       "<p>\x01</p>"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(broken); i++) {
        print_message("%s\n", broken[i]);
        assert_non_null(find_fault(broken[i]));
    }
    assert_null(find_fault("<!DOCTYPE html>\n<a x=\"1\" open><b/>text &lt;<meta><script>a<b</script></a>\n"));
}

static void test_format_short_table(void **state)
{
    static const struct {
        double value;
        const char *expected;
    } rows[] = {{0, "0"},          {0.25, "0.25"},  {9999, "9999"}, {12345, "12.35k"},
                {-2.5e6, "-2.5M"}, {1e-6, "1e-06"}, {3e9, "3G"},    {1e15, "1e+15"}};
    char text[32];

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        rk_format_short(text, sizeof(text), rows[i].value);
        assert_string_equal(text, rows[i].expected);
    }
}

/* --- the page --- */

struct fixture {
    struct rk_config *job;
    char *dir, *path;
    void *state;
};

static struct fixture open_report(const char *dir)
{
    const char *const overrides[] = {"data.train_files=[\"a.jsonl\"]", "trainer.experiment_name=a<b",
                                     "actor_rollout_ref.model.path=/models/\"x\""};
    struct fixture f = {.dir = rk_test_temp_path(dir)};
    struct rk_logger_config config = {.run_dir = f.dir, .world_size = 2};

    assert_ok(rk_job_load(&f.job, NULL, overrides, RK_ARRAY_LEN(overrides)));
    config.job = f.job;
    assert_ok(rk_make_dirs(f.dir));
    assert_ok(rk_logger_report.open(&f.state, &config));
    f.path = rk_path_join(f.dir, "report.html");
    return f;
}

static void close_report(struct fixture *f)
{
    rk_logger_report.close(f->state);
    rk_config_destroy(f->job);
    rk_free(f->path);
    rk_free(f->dir);
}

static void log_metrics(struct fixture *f, int64_t step, double reward, double grad_norm)
{
    struct rk_json *metrics = rk_json_new_object();

    rk_json_set(metrics, "critic/score/mean", rk_json_new_real(reward));
    rk_json_set(metrics, "actor/grad_norm",
                isfinite(grad_norm) ? rk_json_new_real(grad_norm) : rk_json_new_null());
    rk_json_set(metrics, "timing_s/gen", rk_json_new_real(1.0));
    if (step % 2 == 0)
        rk_json_set(metrics, "timing_s/testing", rk_json_new_real(0.5));
    rk_json_set(metrics, "timing_s/step", rk_json_new_real(2.0));
    rk_json_set(metrics, "perf/throughput", rk_json_new_real(100.0));
    rk_json_set(metrics, "not/plotted", rk_json_new_real(1.0));
    assert_ok(rk_logger_report.log(f->state, step, metrics));
    rk_json_free(metrics);
}

static char *finish(struct fixture *f, const char *outcome)
{
    assert_ok(rk_logger_report.finish(f->state, outcome));
    return rk_test_read_file(f->path, NULL);
}

static char *text_between(const char *text, const char *begin, const char *end)
{
    const char *from = strstr(text, begin), *to;

    assert_non_null(from);
    from += strlen(begin);
    to = strstr(from, end);
    assert_non_null(to);
    return rk_strndup(from, (size_t)(to - from));
}

static char *data_text(const char *page)
{
    return text_between(page, "<script type=\"application/json\" id=\"metrics\">", "</script>");
}

static struct rk_json *read_data(const char *page)
{
    char *text = data_text(page);
    struct rk_json *data;

    assert_ok(rk_json_parse(&data, text, strlen(text), "metrics", 0));
    rk_free(text);
    return data;
}

static const struct rk_json *find_series(const struct rk_json *data, const char *name)
{
    const struct rk_json *list = rk_json_find(data, "series");

    for (int64_t i = 0; i < rk_json_count(list); i++) {
        if (strcmp(rk_json_as_string(rk_json_find(rk_json_at(list, i), "name"), ""), name) == 0)
            return rk_json_at(list, i);
    }
    fail_msg("no series '%s'", name);
    return NULL;
}

static double value_at(const struct rk_json *series, const char *column, int64_t i)
{
    assert_true(i < rk_json_count(rk_json_find(series, column)));
    return rk_json_as_real(rk_json_at(rk_json_find(series, column), i), (double)NAN);
}

static const char *find_engine(void)
{
    static const char *const paths[] = {"/usr/bin/node", "/usr/bin/nodejs", "/usr/bin/qjs"};

    for (size_t i = 0; i < RK_ARRAY_LEN(paths); i++) {
        if (access(paths[i], X_OK) == 0)
            return paths[i];
    }
    return NULL;
}

/* What report.js draws in a document that has nothing but the two elements; rk_free it. */
static char *draw(const char *engine, const char *page)
{
    char *data = data_text(page), *script = text_between(page, "<script>\n", "</script>");
    struct rk_json *literal = rk_json_new_string(data);
    char *quoted = rk_json_dump(literal, 0, false), *path = rk_test_temp_path("draw.js"), *html, *errors;
    char *program = rk_format("const charts = {};\nglobalThis.document = {getElementById: (id) => id === "
                              "\"metrics\" ? {textContent: %s} : "
                              "charts, querySelectorAll: () => [], querySelector: () => "
                              "null};\n%s\nconsole.log(charts.innerHTML);\n",
                              quoted, script);
    const char *const argv[] = {engine, path, NULL};
    struct rk_proc *proc;

    rk_test_write_file(path, program, strlen(program));
    proc = rk_proc_start(argv);
    if (rk_proc_wait(proc, rk_proc_timeout_ms(30000)) != 0) {
        errors = rk_proc_stderr(proc);
        fail_msg("%s", errors);
    }
    html = rk_proc_stdout(proc);
    rk_proc_destroy(proc);
    rk_json_free(literal);
    rk_free(program);
    rk_free(quoted);
    rk_free(path);
    rk_free(script);
    rk_free(data);
    return html;
}

/* What is drawn is well formed and has all of the parts, which are separated by newlines. */
static void expect_drawn(const char *page, const char *parts, const char *absent)
{
    const char *engine = find_engine();
    char *html, *rest = rk_strdup(parts), *next = rest;

    if (!engine) {
        rk_test_skip_part("drawing: neither node (package nodejs) nor qjs (package quickjs) is installed");
        rk_free(rest);
        return;
    }
    html = draw(engine, page);
    assert_well_formed(html);
    assert_null(strstr(html, "NaN"));
    assert_null(strstr(html, "Infinity"));
    assert_null(strstr(html, "undefined"));
    for (const char *part; (part = strsep(&next, "\n")) != NULL;)
        assert_shows(html, part);
    if (absent && strstr(html, absent))
        fail_msg("'%s' is there", absent);
    rk_free(html);
    rk_free(rest);
}

/* Goal: the data in the page are the metrics, to the last digit, also those that are drawn otherwise; names
 * of users cannot end the element that the data are in. */
static void test_report_embeds_the_metrics(void **state)
{
    static const double values[] = {0.1, -1e300, 1.0 / 3.0, 5e-324, 0.0};
    static const char evil[] = "reward_extra/</script><!--<b>&\"/mean";
    struct fixture f = open_report("embedded");
    const struct rk_json *series;
    struct rk_json *data;
    char *page, *text;

    (void)state;
    assert_ok(rk_logger_report.begin(f.state, 1, 5));
    for (int64_t step = 1; step <= 5; step++) {
        struct rk_json *metrics = rk_json_new_object();

        rk_json_set(metrics, "actor/entropy", rk_json_new_real(values[step - 1]));
        rk_json_set(metrics, evil, rk_json_new_real(values[step - 1]));
        if (step != 2)
            rk_json_set(metrics, "critic/score/mean", rk_json_new_int(step));
        assert_ok(rk_logger_report.log(f.state, step, metrics));
        rk_json_free(metrics);
    }
    page = finish(&f, "succeeded");
    assert_well_formed(page);
    text = data_text(page);
    assert_null(strchr(text, '<'));
    data = read_data(page);
    assert_int_equal(rk_json_count(rk_json_find(data, "series")), 3);
    assert_int_equal(rk_json_as_int(rk_json_find(data, "world_size"), 0), 2);
    for (int64_t i = 0; i < 5; i++) {
        assert_true(value_at(find_series(data, "actor/entropy"), "y", i) == values[i]);
        assert_true(value_at(find_series(data, evil), "y", i) == values[i]);
        assert_true(value_at(find_series(data, evil), "x", i) == (double)(i + 1));
    }
    series = find_series(data, "critic/score/mean");
    assert_int_equal(rk_json_count(rk_json_find(series, "x")), 4);
    assert_true(value_at(series, "x", 1) == 3.0);
    expect_drawn(page, "&lt;/script&gt;&lt;!--&lt;b&gt;&amp;&quot;/mean</li>\n<b>Entropy</b>", "<!--");
    rk_json_free(data);
    rk_free(text);
    rk_free(page);
    close_report(&f);
}

/* Goal: axes of charts have round ticks around the values: of one value, equal values, zeros and extreme
 * ones. */
static void test_report_axes(void **state)
{
    static const struct {
        const char *label, *metric;
        int64_t count;
        double values[5];
        const char *shows;
    } rows[] = {
        {"five values",
         "actor/entropy",
         5,
         {0.1, 0.2, 0.15, 0.4, 0.6},
         ">0.6</text>\n>0.1</text>\nclass=\"line c0\""},
        {"from zero", "actor/grad_norm", 5, {0.1, 0.2, 0.15, 0.4, 0.6}, ">0</text>\n>0.6</text>"},
        {"one value", "actor/entropy", 1, {0.1}, "<circle\n>0.1</text>"},
        {"all the same", "actor/entropy", 5, {0.5, 0.5, 0.5, 0.5, 0.5}, ">0.45</text>\n>0.55</text>"},
        {"all zero", "actor/grad_norm", 5, {0, 0, 0, 0, 0}, ">0</text>\n>1</text>"},
        {"extreme values",
         "actor/entropy",
         5,
         {-1e300, 1e300, 0, 1e-300, 2},
         ">1e+300</text>\nclass=\"line c0\""},
        {"units", "perf/throughput", 2, {0, 12e6}, ">25M</text>"},
        {"small values", "actor/entropy", 2, {0, 2e-6}, ">1e-6</text>"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct fixture f = open_report("axes");
        char *page;

        print_message("%s\n", rows[i].label);
        for (int64_t step = 0; step < rows[i].count; step++) {
            struct rk_json *metrics = rk_json_new_object();

            rk_json_set(metrics, rows[i].metric, rk_json_new_real(rows[i].values[step]));
            assert_ok(rk_logger_report.log(f.state, step + 1, metrics));
            rk_json_free(metrics);
        }
        page = finish(&f, "succeeded");
        expect_drawn(page, rows[i].shows, NULL);
        rk_free(page);
        close_report(&f);
    }
}

/* Goal: a reader is told when the curves of a run cannot mean learning, and is not told otherwise. */
static void test_report_notices(void **state)
{
    static const struct {
        double clip_ratios[2], grad_norms[2];
        bool is_cut_off, is_without_gradients;
    } rows[] = {
        {{1.0, 1.0}, {0.0, 0.0}, true, true},
        {{1.0, 0.5}, {0.0, 0.1}, false, false},
        {{0.0, 0.0}, {0.1, 0.0}, false, false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct fixture f = open_report("notices");
        char *page;

        assert_ok(rk_logger_report.begin(f.state, 1, 2));
        for (int64_t step = 1; step <= 2; step++) {
            struct rk_json *metrics = rk_json_new_object();

            rk_json_set(metrics, "response_length/clip_ratio",
                        rk_json_new_real(rows[i].clip_ratios[step - 1]));
            rk_json_set(metrics, "actor/grad_norm", rk_json_new_real(rows[i].grad_norms[step - 1]));
            assert_ok(rk_logger_report.log(f.state, step, metrics));
            rk_json_free(metrics);
        }
        page = finish(&f, "succeeded");
        assert_int_equal(strstr(page, "Every response was cut off") != NULL, rows[i].is_cut_off);
        assert_int_equal(strstr(page, "Every gradient is 0") != NULL, rows[i].is_without_gradients);
        rk_free(page);
        close_report(&f);
    }
}

/* Goal: nine phases have nine legends of their own, the ninth hatched; a constant 0 has an axis from 0 to 1;
 * numbers of the reward are plotted. */
static void test_report_tells_many_series_apart(void **state)
{
    static const char *const phases[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    struct fixture f = open_report("phases");
    struct rk_json *metrics = rk_json_new_object();
    char *page;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(phases); i++) {
        char *name = rk_format("timing_s/%s", phases[i]);

        rk_json_set(metrics, name, rk_json_new_real(1.0));
        rk_free(name);
    }
    rk_json_set(metrics, "timing_s/agent_loop/generate_sequences/max", rk_json_new_real(1.0));
    rk_json_set(metrics, "timing_s/step", rk_json_new_real(9.0));
    rk_json_set(metrics, "reward_extra/acc/mean", rk_json_new_real(0.0));
    assert_ok(rk_logger_report.begin(f.state, 1, 2));
    for (int64_t step = 1; step <= 2; step++)
        assert_ok(rk_logger_report.log(f.state, step, metrics));
    page = finish(&f, "succeeded");
    expect_drawn(
        page,
        "<span class=\"swatch c7\"></span>h</li>\n<span class=\"swatch c0 second\"></span>i</li></ul>\n"
        "<path class=\"hatched\" d=\"M\n<b>Numbers of the reward</b>\n</span>acc/mean</li>",
        ">-0."); /* no tick below 0 */
    rk_json_free(metrics);
    rk_free(page);
    close_report(&f);
}

/* Goal: the page is self-contained and complete, and a model's text is not interpreted as markup. */
static void test_report_page_is_well_formed_and_escapes_texts(void **state)
{
    struct rk_sample sample = {.input = "1 < 2 & \"3\"",
                               .output = "</pre><script>alert(1)</script>\x1b[31m",
                               .gts = "<b>",
                               .score = 0.5};
    struct rk_samples samples = {RK_SAMPLES_VAL, 1, &sample};
    struct rk_json *validation = rk_json_new_object();
    struct fixture f = open_report("page");
    char *page;

    (void)state;
    rk_json_set(validation, "val-core/gsm8k/reward/mean@4", rk_json_new_real(0.125));
    assert_ok(rk_logger_report.begin(f.state, 1, 9));
    assert_ok(rk_logger_report.log(f.state, 0, validation));
    for (int64_t step = 1; step <= 4; step++)
        log_metrics(&f, step, 0.1 * (double)step, step == 2 ? (double)NAN : 1.0);
    assert_ok(rk_logger_report.log_samples(f.state, 4, &samples));
    page = finish(&f, "succeeded");
    assert_well_formed(page);
    assert_shows(page, "<h1>rankd / a&lt;b</h1>");
    assert_shows(page, "/models/&quot;x&quot;");
    assert_shows(page, "badge succeeded");
    assert_shows(page, "4 / 9");
    assert_shows(page, "step 0, gsm8k/reward/mean@4");
    assert_shows(page, "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;[31m");
    expect_drawn(
        page,
        "</span>gsm8k/reward/mean@4</li>\n</span>gradient norm</li>\n</span>tokens/s</li>\n>200</text>\n"
        "</span>gen</li><li><span class=\"swatch c1\"></span>testing</li></ul>",
        "not/plotted");
    assert_null(strstr(page, "<script>alert"));
    assert_null(strstr(page, "not/plotted"));
    assert_null(strstr(page, "://"));
    assert_null(strstr(page, "src="));
    rk_free(page);
    rk_json_free(validation);
    close_report(&f);
}

/* Goal: a long run gives a page of the size of a short one and keeps its extremes. */
static void test_report_of_a_long_run_stays_small_and_keeps_extremes(void **state)
{
    struct fixture f = open_report("long");
    double num_values = 0.0, high_x = 0.0;
    const struct rk_json *series;
    int64_t now = 1000000000;
    struct rk_json *data;
    char *page;

    (void)state;
    rk_time_inject(&now); /* the clock does not advance: nothing is written before the end */
    assert_ok(rk_logger_report.begin(f.state, 1, 20000));
    for (int64_t step = 1; step <= 20000; step++)
        log_metrics(&f, step, (double)(step % 7), step == 12345 ? 777.0 : 1.0);
    page = finish(&f, "failed");
    rk_time_inject(NULL);
    assert_well_formed(page);
    print_message("%zu bytes\n", strlen(page));
    assert_true(strlen(page) < 100000);
    data = read_data(page);
    series = find_series(data, "actor/grad_norm");
    for (int64_t i = 0; i < rk_json_count(rk_json_find(series, "x")); i++) {
        num_values += value_at(series, "n", i);
        if (value_at(series, "high", i) == 777.0)
            high_x = value_at(series, "high_x", i);
        assert_true(value_at(series, "low", i) == 1.0);
    }
    assert_true(num_values == 20000.0);
    assert_true(high_x == 12345.0);
    assert_true(value_at(series, "x", 119) == 20000.0);
    rk_json_free(data);
    /* the axis extends beyond 777; a phase that runs in every other step has half of its mean */
    expect_drawn(page, ">800</text>\nclass=\"faint c0\"\n</span>testing</li>", NULL);
    assert_shows(page, "20000 / 20000");
    rk_free(page);
    close_report(&f);
}

static bool is_there(const struct fixture *f)
{
    struct stat info;

    return stat(f->path, &info) == 0;
}

static void test_report_is_written_at_most_every_few_seconds(void **state)
{
    struct fixture f = open_report("paced");
    int64_t now = 1000000000;

    (void)state;
    rk_time_inject(&now);
    assert_ok(rk_logger_report.begin(f.state, 1, 3));
    log_metrics(&f, 1, 0.0, 1.0);
    assert_true(is_there(&f));
    assert_int_equal(remove(f.path), 0);
    now += 1000000000;
    log_metrics(&f, 2, 0.0, 1.0);
    assert_false(is_there(&f));
    now += 3000000000;
    log_metrics(&f, 3, 0.0, 1.0);
    assert_true(is_there(&f));
    rk_time_inject(NULL);
    close_report(&f);
}

/* Goal: a continued run shows the steps before it, from metrics.jsonl, and no step twice. */
static void test_report_of_a_continued_run_begins_with_its_history(void **state)
{
    static const char history[] = "{\"training/global_step\": 1, \"critic/score/mean\": 0.25}\n"
                                  "{\"training/global_step\": 2, \"critic/score/mean\": 0.5}\n"
                                  "{\"training/global_step\": 3, \"critic/score/mean\": 0.75}\n";
    static const double rewards[] = {0.25, 0.5, 0.625};
    struct fixture f = open_report("continued");
    struct rk_json *data;
    char *path = rk_path_join(f.dir, "metrics.jsonl"), *page;

    (void)state;
    rk_test_write_file(path, history, sizeof(history) - 1);
    assert_ok(rk_logger_report.begin(f.state, 3, 4));
    log_metrics(&f, 3, 0.625, 1.0);
    page = finish(&f, "interrupted");
    data = read_data(page);
    for (int64_t i = 0; i < 3; i++) {
        assert_true(value_at(find_series(data, "critic/score/mean"), "x", i) == (double)(i + 1));
        assert_true(value_at(find_series(data, "critic/score/mean"), "y", i) == rewards[i]);
    }
    rk_json_free(data);
    assert_shows(page, "3 / 4");
    rk_free(page);
    rk_free(path);
    close_report(&f);
}

/* Goal: the page size does not grow with the texts; texts are cut at character boundaries, and the cut is
 * stated. */
static void test_report_long_texts_are_shortened(void **state)
{
    struct rk_str text = {0};
    struct rk_sample sample = {.input = "p", .gts = ""};
    struct rk_samples samples = {RK_SAMPLES_TRAIN, 1, &sample};
    struct fixture f = open_report("texts");
    char *page;

    (void)state;
    rk_str_append(&text, "x");
    for (int i = 0; i < 10000; i++)
        rk_str_append(&text, "\u00fc");
    sample.output = rk_str_text(&text);
    log_metrics(&f, 1, 0.5, 1.0);
    assert_ok(rk_logger_report.log_samples(f.state, 1, &samples));
    page = finish(&f, "succeeded");
    assert_well_formed(page);
    assert_true(rk_utf8_is_valid(page, strlen(page)));
    assert_shows(page, "[11810 more bytes]");
    rk_free(page);
    rk_str_fini(&text);
    close_report(&f);
}

/* Goal: a run that ended before its first step writes no report. */
static void test_report_without_a_step_is_not_written(void **state)
{
    struct fixture f = open_report("nothing");

    (void)state;
    assert_ok(rk_logger_report.finish(f.state, "failed"));
    assert_false(is_there(&f));
    close_report(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find_fault_broken_documents_are_found),
        cmocka_unit_test(test_format_short_table),
        cmocka_unit_test(test_report_page_is_well_formed_and_escapes_texts),
        cmocka_unit_test(test_report_embeds_the_metrics),
        cmocka_unit_test(test_report_axes),
        cmocka_unit_test(test_report_notices),
        cmocka_unit_test(test_report_tells_many_series_apart),
        cmocka_unit_test(test_report_of_a_long_run_stays_small_and_keeps_extremes),
        cmocka_unit_test(test_report_is_written_at_most_every_few_seconds),
        cmocka_unit_test(test_report_of_a_continued_run_begins_with_its_history),
        cmocka_unit_test(test_report_long_texts_are_shortened),
        cmocka_unit_test(test_report_without_a_step_is_not_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
