/* Values of overrides in the grammar of Hydra, which verl's command lines use: True, None, 'text', [a,b],
 * {a:1}, backslashes before special characters. JSON is read as JSON first. */
#include "base/config/rk_config_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/rk_alloc.h"
#include "base/rk_env.h"
#include "base/rk_json.h"

#define MAX_REF_DEPTH 32    /* of references to references */
#define MAX_REFS      10000 /* in one load: references that double at each step would fill the memory */

struct parser {
    const char *p;
    const char *problem; /* the first; static */
    int depth;
};

static struct rk_json *parse_element(struct parser *parser);

static void skip_spaces(struct parser *parser)
{
    while (*parser->p == ' ' || *parser->p == '\t')
        parser->p++;
}

static struct rk_json *fail(struct parser *parser, const char *problem)
{
    if (!parser->problem)
        parser->problem = problem;
    return NULL;
}

/* '-12', '1_000', '1e-6', '.5'; not '007', which is text. NULL for text that is not a number. */
static struct rk_json *parse_number(const char *text)
{
    const char *digits = text + (*text == '-' || *text == '+');
    struct rk_json *number = NULL;
    struct rk_str plain = {0};
    bool is_integer = true;
    char *end;

    if (!isdigit((unsigned char)digits[0]) && !(digits[0] == '.' && isdigit((unsigned char)digits[1])))
        return NULL;
    if (digits[0] == '0' && isdigit((unsigned char)digits[1]))
        return NULL;
    if (strspn(text, "0123456789+-._eE") != strlen(text))
        return NULL;
    for (const char *p = text; *p; p++) {
        bool is_gap = *p == '_' && p > text && isdigit((unsigned char)p[-1]) && isdigit((unsigned char)p[1]);

        is_integer &= !strchr(".eE", *p);
        if (!is_gap && !(*p == '+' && p == text))
            rk_str_append_bytes(&plain, p, 1);
    }
    if (is_integer) {
        int64_t value;

        if (rk_parse_i64(rk_str_text(&plain), &value))
            number = rk_json_new_int(value);
    } else {
        double value = strtod(rk_str_text(&plain), &end);

        if (!*end)
            number = rk_json_new_real(value);
    }
    rk_str_fini(&plain);
    return number;
}

/* A word without quotes. */
static struct rk_json *make_word(const char *text)
{
    struct rk_json *number = parse_number(text);

    if (number)
        return number;
    if (strcasecmp(text, "true") == 0 || strcasecmp(text, "false") == 0)
        return rk_json_new_bool(tolower((unsigned char)*text) == 't');
    if (strcasecmp(text, "null") == 0 || strcmp(text, "None") == 0)
        return rk_json_new_null();
    return rk_json_new_string(text);
}

/* 'it\'s': a backslash escapes the quote, and a backslash before it; other backslashes are literal. */
static struct rk_json *parse_quoted(struct parser *parser)
{
    char quote = *parser->p++;
    struct rk_str text = {0};
    struct rk_json *json;

    while (*parser->p && *parser->p != quote) {
        const char *run = parser->p;
        size_t slashes = strspn(run, "\\");

        if (slashes > 0 && run[slashes] == quote) {
            rk_str_append_bytes(&text, run, slashes / 2);
            parser->p += slashes;
            if (slashes % 2 == 0)
                break;
        }
        rk_str_append_bytes(&text, parser->p, 1);
        parser->p++;
    }
    json =
        *parser->p == quote ? rk_json_new_string(rk_str_text(&text)) : fail(parser, "a quote is not closed");
    parser->p += *parser->p == quote;
    rk_str_fini(&text);
    return json;
}

/* Text up to one of `stops`, without the spaces around it. */
static char *take_word(struct parser *parser, const char *stops)
{
    struct rk_str word = {0};
    size_t bytes = 0; /* up to the last character that is no space */

    while (*parser->p && !strchr(stops, *parser->p)) {
        const char *close = rk_str_has_prefix(parser->p, "${") ? strchr(parser->p, '}') : NULL;
        size_t run = close ? (size_t)(close + 1 - parser->p) : 1;

        if (*parser->p == '\\' && parser->p[1] && strchr("\\()[]{}:=, \t", parser->p[1]))
            parser->p++;
        rk_str_append_bytes(&word, parser->p, run);
        parser->p += run;
        if (parser->p[-1] != ' ' && parser->p[-1] != '\t')
            bytes = word.bytes;
    }
    if (word.text)
        word.text[bytes] = '\0';
    return rk_str_take(&word);
}

static struct rk_json *parse_word(struct parser *parser)
{
    char *word = take_word(parser, ",]}[{'\"");
    struct rk_json *json = *word ? make_word(word) : fail(parser, "a value is missing");

    rk_free(word);
    return json;
}

/* After an element: true when another one follows. */
static bool has_next(struct parser *parser, char close)
{
    skip_spaces(parser);
    if (*parser->p == ',') {
        parser->p++;
        return true;
    }
    if (*parser->p == close)
        parser->p++;
    else
        fail(parser, close == ']' ? "expected , or ]" : "expected , or }");
    return false;
}

static bool is_empty(struct parser *parser, char close)
{
    skip_spaces(parser);
    if (*parser->p != close)
        return false;
    parser->p++;
    return true;
}

static struct rk_json *parse_list(struct parser *parser)
{
    struct rk_json *list = rk_json_new_array();

    parser->p++;
    if (is_empty(parser, ']'))
        return list;
    do {
        struct rk_json *item = parse_element(parser);

        if (item)
            rk_json_append(list, item);
    } while (!parser->problem && has_next(parser, ']'));
    return list;
}

static void parse_member(struct parser *parser, struct rk_json *dict)
{
    struct rk_json *quoted = NULL, *value;
    char *name;

    skip_spaces(parser);
    if (*parser->p == '\'' || *parser->p == '"')
        quoted = parse_quoted(parser);
    name = quoted ? rk_strdup(rk_json_as_string(quoted, "")) : take_word(parser, ":,]}[{'\"");
    skip_spaces(parser);
    if (!*name || *parser->p != ':')
        fail(parser, "expected NAME:VALUE");
    else {
        parser->p++;
        value = parse_element(parser);
        if (value)
            rk_json_set(dict, name, value);
    }
    rk_json_free(quoted);
    rk_free(name);
}

static struct rk_json *parse_dict(struct parser *parser)
{
    struct rk_json *dict = rk_json_new_object();

    parser->p++;
    if (is_empty(parser, '}'))
        return dict;
    do {
        parse_member(parser, dict);
    } while (!parser->problem && has_next(parser, '}'));
    return dict;
}

/* With a problem the result is NULL, or a part of the value. */
static struct rk_json *parse_element(struct parser *parser)
{
    struct rk_json *json;

    if (parser->depth == RK_JSON_MAX_DEPTH)
        return fail(parser, "nested too deeply");
    parser->depth++;
    skip_spaces(parser);
    if (*parser->p == '[')
        json = parse_list(parser);
    else if (*parser->p == '{')
        json = parse_dict(parser);
    else if (*parser->p == '\'' || *parser->p == '"')
        json = parse_quoted(parser);
    else
        json = parse_word(parser);
    parser->depth--;
    return json;
}

static struct rk_json *parse_structured(const char *text, const char **problem)
{
    struct parser parser = {.p = text};
    struct rk_json *json = parse_element(&parser);

    skip_spaces(&parser);
    if (!parser.problem && *parser.p)
        fail(&parser, "unexpected text after the value");
    *problem = parser.problem;
    if (!parser.problem)
        return json;
    rk_json_free(json);
    return NULL;
}

struct rk_json *rk_config_parse_override(const struct rk_config_loader *loader, const char *path,
                                         const char *text, const char **problem)
{
    struct rk_json *json = rk_config_parse_value(loader, path, text);
    bool is_bare = rk_json_type(json) == RK_JSON_STRING && strcmp(rk_json_as_string(json, ""), text) == 0;
    bool is_text = rk_config_holds_text(loader, path);

    *problem = NULL;
    if (!is_bare || !*text)
        return json;
    if (is_text ? *text != '\'' : !strchr("[{'\"", text[strspn(text, " ")])) {
        struct parser parser = {.p = text};
        char *word;

        if (is_text && strcmp(text, "None") != 0)
            return json;
        rk_json_free(json);
        skip_spaces(&parser);
        word = take_word(&parser, "");
        json = make_word(word);
        rk_free(word);
        return json;
    }
    rk_json_free(json);
    return parse_structured(text, problem);
}

/* --- "${a.b}", "${a.b:default}", "${env:NAME}" and "${env:NAME:default}" as whole values. --- */

struct chain {
    const char *target;
    const struct chain *outer;
};

struct resolving {
    struct rk_config_loader *loader;
    int64_t num_refs;
};

static struct rk_json *resolve_value(struct resolving *run, const struct rk_json *json, const char *path,
                                     const struct chain *chain);

static void ref_problem(struct resolving *run, const char *path, const char *ref, const char *problem)
{
    rk_config_problem(run->loader, rk_config_find_place(run->loader, path), path, "%s: %s", ref, problem);
}

/* "NAME" or "NAME:default"; changes `name`. */
static struct rk_json *resolve_env(struct resolving *run, const char *path, const char *ref, char *name)
{
    char *colon = strchr(name, ':');
    const char *value;

    if (colon)
        *colon = '\0';
    value = rk_env(name);
    if (!value && !colon) {
        ref_problem(run, path, ref, "the environment variable is not set");
        return NULL;
    }
    return rk_config_parse_value(run->loader, path, value ? value : colon + 1);
}

/* Why `target` cannot be followed from here, or NULL. */
static const char *find_obstacle(struct resolving *run, const char *target, const struct chain *chain)
{
    int depth = 0;

    for (const struct chain *outer = chain; outer; outer = outer->outer, depth++) {
        if (strcmp(outer->target, target) == 0)
            return "circular reference";
    }
    if (depth == MAX_REF_DEPTH)
        return "references too deep";
    return ++run->num_refs > MAX_REFS ? "too many references" : NULL;
}

/* "KEY" or "KEY:default"; changes `target`. */
static struct rk_json *resolve_key(struct resolving *run, const char *path, const char *ref, char *target,
                                   const struct chain *chain)
{
    struct chain link = {.target = target, .outer = chain};
    char *colon = strchr(target, ':');
    const struct rk_json *found;
    struct rk_json *value = NULL;
    const char *obstacle;

    if (colon)
        *colon = '\0';
    obstacle = find_obstacle(run, target, chain);
    if (obstacle) {
        ref_problem(run, path, ref, obstacle);
        return NULL;
    }
    found = rk_json_find_path(run->loader->tree, target);
    if (found)
        value = resolve_value(run, found, target, &link);
    else if (!colon)
        ref_problem(run, path, ref, "there is no such key");
    if (!colon || !rk_json_is_null(value))
        return value;
    rk_json_free(value);
    return rk_config_parse_value(run->loader, path, colon + 1);
}

static struct rk_json *resolve_ref(struct resolving *run, const char *ref, const char *path,
                                   const struct chain *chain)
{
    char *target = rk_strndup(ref + 2, strlen(ref) - 3);
    struct rk_json *value;

    if (rk_str_has_prefix(target, "env:"))
        value = resolve_env(run, path, ref, target + 4);
    else
        value = resolve_key(run, path, ref, target, chain);
    rk_free(target);
    return value;
}

/* A copy of `json` with every reference replaced; NULL, and a problem, for an invalid reference. */
static struct rk_json *resolve_value(struct resolving *run, const struct rk_json *json, const char *path,
                                     const struct chain *chain)
{
    struct rk_json *copy, *part;

    if (rk_config_is_ref(json))
        return resolve_ref(run, rk_json_as_string(json, ""), path, chain);
    if (rk_json_type(json) == RK_JSON_OBJECT) {
        copy = rk_json_new_object();
        for (void *it = rk_json_iter(json); it; it = rk_json_iter_next(json, it)) {
            char *member_path = rk_json_join_path(path, rk_json_iter_key(it));

            part = resolve_value(run, rk_json_iter_value(it), member_path, chain);
            if (part)
                rk_json_set(copy, rk_json_iter_key(it), part);
            rk_free(member_path);
        }
        return copy;
    }
    if (rk_json_type(json) == RK_JSON_ARRAY) {
        copy = rk_json_new_array();
        for (int64_t i = 0; i < rk_json_count(json); i++) {
            part = resolve_value(run, rk_json_at(json, i), path, chain);
            if (part)
                rk_json_append(copy, part);
        }
        return copy;
    }
    return rk_json_retain(json);
}

void rk_config_resolve_refs(struct rk_config_loader *loader)
{
    struct resolving run = {.loader = loader};
    struct rk_json *resolved = resolve_value(&run, loader->tree, "", NULL);

    rk_json_free(loader->tree);
    loader->tree = resolved;
}
