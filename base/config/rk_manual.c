#include "base/config/rk_manual.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"

/* Hyphens are minus signs, so that options can be copied; at the start of a line a dot and an apostrophe
 * would be requests. */
static void append_escaped(struct rk_str *out, const char *text, size_t bytes)
{
    bool is_at_start = out->bytes == 0 || out->text[out->bytes - 1] == '\n';

    for (size_t i = 0; i < bytes; i++) {
        if (is_at_start && (text[i] == '.' || text[i] == '\''))
            rk_str_append(out, "\\&");
        is_at_start = text[i] == '\n';
        switch (text[i]) {
        case '\\':
            rk_str_append(out, "\\e");
            break;
        case '-':
            rk_str_append(out, "\\-");
            break;
        case '\'':
            rk_str_append(out, "\\(aq");
            break;
        case '^':
            rk_str_append(out, "\\(ha");
            break;
        case '~':
            rk_str_append(out, "\\(ti");
            break;
        case '|': /* lines may break after these, otherwise long names would not fit */
        case '_':
        case '/':
        case ',':
            rk_str_appendf(out, "%c\\:", text[i]);
            break;
        default:
            rk_str_append_bytes(out, &text[i], 1);
        }
    }
}

void rk_manual_begin(struct rk_str *out, const char *name, int section, const char *version,
                     const char *summary)
{
    rk_str_append(out, ".\\\" Made from the program's tables.\n.TH ");
    for (const char *at = name; *at; at++)
        rk_str_appendf(out, *at == '-' ? "\\-" : "%c", toupper((unsigned char)*at));
    rk_str_appendf(out, " %d \"\" \"rankd %s\" \"rankd\"\n.ad l\n.nh\n.SH NAME\n", section, version);
    append_escaped(out, name, strlen(name));
    rk_str_append(out, " \\- ");
    append_escaped(out, summary, strlen(summary));
    rk_str_append(out, "\n");
}

void rk_manual_section(struct rk_str *out, const char *title)
{
    rk_str_appendf(out, ".SH \"%s\"\n", title);
}

void rk_manual_subsection(struct rk_str *out, const char *title)
{
    rk_str_append(out, ".SS \"");
    append_escaped(out, title, strlen(title));
    rk_str_append(out, "\"\n");
}

void rk_manual_text(struct rk_str *out, const char *text)
{
    bool is_verbatim = false, is_new = false;

    while (*text) {
        size_t bytes = strcspn(text, "\n");

        if (bytes == 0) {
            is_new = true;
        } else {
            if (is_verbatim != (text[0] == ' '))
                rk_str_append(out, is_verbatim ? ".fi\n" : ".PP\n.nf\n");
            else if (is_new)
                rk_str_append(out, ".PP\n");
            is_verbatim = text[0] == ' ';
            is_new = false;
            append_escaped(out, text, bytes);
            rk_str_append(out, "\n");
        }
        text += bytes + (text[bytes] == '\n');
    }
    if (is_verbatim)
        rk_str_append(out, ".fi\n");
}

void rk_manual_item(struct rk_str *out, const char *term, const char *text)
{
    rk_str_append(out, ".TP\n\\fB");
    append_escaped(out, term, strlen(term));
    rk_str_append(out, "\\fR\n");
    rk_manual_text(out, text);
}

static void append_variable(struct rk_str *out, const char *prefix, const char *path)
{
    rk_str_appendf(out, " Environment: %s_", prefix);
    for (; *path; path++)
        rk_str_appendf(out, "%c", *path == '.' ? '_' : toupper((unsigned char)*path));
    rk_str_append(out, ".");
}

void rk_manual_key(struct rk_str *out, const struct rk_config_key *key, const char *env_prefix)
{
    struct rk_str text = {0};

    rk_str_appendf(&text, "%s. %s", key->help, rk_config_type_name(key->type));
    if (key->choices)
        rk_str_appendf(&text, ", one of %s", key->choices);
    if (key->default_text)
        rk_str_appendf(&text, "; default %s.", key->default_text);
    else
        rk_str_append(&text, "; required.");
    if (key->flags & RK_CONFIG_RELOADABLE)
        rk_str_append(&text, " A reload applies it.");
    if (env_prefix)
        append_variable(&text, env_prefix, key->path);
    rk_manual_item(out, key->path, rk_str_text(&text));
    rk_str_fini(&text);
}

void rk_manual_options(struct rk_str *out, const struct rk_option *options)
{
    for (; options && options->name; options++) {
        char *term = rk_option_term(options);

        rk_manual_item(out, term, options->help);
        rk_free(term);
    }
}

void rk_manual_exit_codes(struct rk_str *out, const struct rk_exit_code *codes, size_t count)
{
    rk_manual_section(out, "EXIT STATUS");
    for (size_t i = 0; i < count; i++) {
        char *code = rk_format("%d", codes[i].code);

        rk_manual_item(out, code, codes[i].text);
        rk_free(code);
    }
}

static const struct rk_manual_page *find_page(const struct rk_manual_page *pages, const char *name)
{
    for (; pages->name; pages++) {
        if (strcmp(pages->name, name) == 0)
            return pages;
    }
    return NULL;
}

static void print_usage(const struct rk_manual_page *pages, const char *program)
{
    fprintf(stderr, "usage: %s ", program);
    for (const struct rk_manual_page *page = pages; page->name; page++)
        fprintf(stderr, "%s%s", page > pages ? "|" : "", page->name);
    fprintf(stderr, " FILE\n");
}

int rk_manual_main(const struct rk_manual_page *pages, int argc, char **argv)
{
    const struct rk_manual_page *page = argc == 3 ? find_page(pages, argv[1]) : NULL;
    struct rk_str text = {0};
    bool is_written;
    FILE *file;

    if (!page) {
        print_usage(pages, argv[0]);
        return 2;
    }
    page->format(&text);
    file = fopen(argv[2], "w");
    is_written = file && fputs(rk_str_text(&text), file) >= 0;
    if (file && fclose(file) != 0)
        is_written = false;
    if (!is_written)
        perror(argv[2]);
    rk_str_fini(&text);
    return is_written ? 0 : 1;
}
