#include "base/config/rk_options.h"

#include <string.h>

#include "base/rk_alloc.h"

static const struct rk_option *find_in(const struct rk_option *options, const char *name)
{
    for (; options && options->name; options++) {
        if (strcmp(options->name, name) == 0)
            return options;
    }
    return NULL;
}

static const struct rk_option *find_option(const struct rk_command_syntax *syntax, const char *name)
{
    const struct rk_option *option = find_in(syntax->options, name);

    return option ? option : find_in(syntax->common_options, name);
}

static struct rk_status *unknown_option(const struct rk_command_syntax *syntax, const char *name)
{
    const struct rk_option *const tables[] = {syntax->options, syntax->common_options};
    RK_ARRAY(const char *) names = {0};
    struct rk_status *st;
    const char *close;

    for (size_t i = 0; i < RK_ARRAY_LEN(tables); i++) {
        for (const struct rk_option *option = tables[i]; option && option->name; option++)
            rk_array_append(&names, option->name);
    }
    close = rk_str_suggest(name, names.items, names.count);
    if (close)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "unknown option --%s; did you mean --%s?", name, close);
    else
        st = RK_FAIL(RK_INVALID_ARGUMENT, "unknown option --%s; see %s --help", name, syntax->program);
    rk_array_fini(&names);
    return st;
}

/* "--name", "--name=value" or "--name value"; *next is the index after the parsed words. */
static struct rk_status *parse_option(struct rk_command_line *line, const struct rk_command_syntax *syntax,
                                      int argc, char **argv, int *next)
{
    const char *text = argv[(*next)++] + 2;
    const char *equals = strchr(text, '=');
    char *name = rk_strndup(text, equals ? (size_t)(equals - text) : strlen(text));
    const struct rk_option *option = find_option(syntax, name);
    struct rk_command_setting setting = {
        .name = name, .value = equals ? equals + 1 : NULL, .is_key = !option};

    rk_array_append(&line->names, name);
    if (!option && !(syntax->takes_keys && equals))
        return unknown_option(syntax, name);
    if (option && !option->value && equals)
        return RK_FAIL(RK_INVALID_ARGUMENT, "--%s takes no value", name);
    if (option && option->value && !equals) {
        if (*next == argc)
            return RK_FAIL(RK_INVALID_ARGUMENT, "--%s needs a value (%s)", name, option->value);
        setting.value = argv[(*next)++];
    }
    if (option && option->value && rk_command_line_has(line, name) &&
        !(syntax->repeatable && strcmp(name, syntax->repeatable) == 0))
        return RK_FAIL(RK_INVALID_ARGUMENT, "--%s is given twice", name);
    rk_array_append(&line->settings, setting);
    return NULL;
}

static struct rk_status *check_args(const struct rk_command_line *line,
                                    const struct rk_command_syntax *syntax)
{
    if (line->args.count < syntax->min_args && !rk_command_line_has(line, "help"))
        return RK_FAIL(RK_INVALID_ARGUMENT, "too few arguments; usage: %s %s", syntax->program, syntax->args);
    if (line->args.count > syntax->max_args && !rk_command_line_has(line, "help"))
        return RK_FAIL(RK_INVALID_ARGUMENT, "unexpected argument '%s'", line->args.items[syntax->max_args]);
    return NULL;
}

struct rk_status *rk_command_line_parse(struct rk_command_line *out, const struct rk_command_syntax *syntax,
                                        int argc, char **argv)
{
    bool only_args = false;

    *out = (struct rk_command_line){.num_before_dashes = -1};
    for (int i = 0; i < argc;) {
        if (!only_args && strcmp(argv[i], "--") == 0) {
            only_args = true;
            out->num_before_dashes = out->args.count;
            i++;
        } else if (!only_args && strcmp(argv[i], "-h") == 0) {
            rk_array_append(&out->settings, ((struct rk_command_setting){.name = "help"}));
            i++;
        } else if (!only_args && rk_str_has_prefix(argv[i], "--")) {
            RK_TRY(parse_option(out, syntax, argc, argv, &i));
        } else {
            rk_array_append(&out->args, argv[i++]);
        }
    }
    return check_args(out, syntax);
}

void rk_command_line_fini(struct rk_command_line *line)
{
    for (int64_t i = 0; i < line->names.count; i++)
        rk_free(line->names.items[i]);
    rk_array_fini(&line->names);
    rk_array_fini(&line->settings);
    rk_array_fini(&line->args);
}

static const struct rk_command_setting *find_setting(const struct rk_command_line *line, const char *name)
{
    for (int64_t i = 0; i < line->settings.count; i++) {
        if (strcmp(line->settings.items[i].name, name) == 0)
            return &line->settings.items[i];
    }
    return NULL;
}

bool rk_command_line_has(const struct rk_command_line *line, const char *name)
{
    return find_setting(line, name) != NULL;
}

const char *rk_command_line_find(const struct rk_command_line *line, const char *name)
{
    const struct rk_command_setting *setting = find_setting(line, name);

    return setting ? setting->value : NULL;
}

char *rk_option_term(const struct rk_option *option)
{
    return rk_format("--%s%s%s", option->name, option->value ? "=" : "", option->value ? option->value : "");
}

void rk_options_format(struct rk_str *out, const struct rk_option *options, const struct rk_option *shadowed)
{
    for (; options && options->name; options++) {
        char *term = rk_option_term(options);

        if (!find_in(shadowed, options->name))
            rk_str_appendf(out, "  %-22s %s\n", term, options->help);
        rk_free(term);
    }
}
