/* Plots are well-formed XML, whatever is plotted, and show what they are given. */
#include "driver-cli/run_internal.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#define DEPTH_MAX      8
#define NAME_MAX_BYTES 32

/* The part of XML that the writer uses: elements, attributes in double quotes, text, five entities. Returns
 * where the document stops being that, or NULL. */
struct xml {
    const char *at;
    char open[DEPTH_MAX][NAME_MAX_BYTES];
    int depth;
};

static bool read_name(struct xml *xml, char *name)
{
    size_t bytes = strspn(xml->at, "abcdefghijklmnopqrstuvwxyz");

    if (bytes == 0 || bytes >= NAME_MAX_BYTES)
        return false;
    memcpy(name, xml->at, bytes);
    name[bytes] = '\0';
    xml->at += bytes;
    return true;
}

/* Text up to `end`, with its entities. */
static bool read_text(struct xml *xml, char end)
{
    static const char *const entities[] = {"&lt;", "&gt;", "&amp;"};

    while (*xml->at && *xml->at != end) {
        bool is_entity = false;

        if (*xml->at == '<' || ((unsigned char)*xml->at < 0x20 && *xml->at != '\n'))
            return false;
        for (size_t i = 0; i < RK_ARRAY_LEN(entities); i++)
            is_entity |= strncmp(xml->at, entities[i], strlen(entities[i])) == 0;
        if (*xml->at == '&' && !is_entity)
            return false;
        xml->at++;
    }
    return *xml->at == end;
}

static bool read_attributes(struct xml *xml)
{
    while (isspace((unsigned char)*xml->at)) {
        xml->at += strspn(xml->at, " \n");
        if (*xml->at == '/' || *xml->at == '>')
            return true;
        xml->at += strspn(xml->at, "abcdefghijklmnopqrstuvwxyzBV0123456789-");
        if (strncmp(xml->at, "=\"", 2) != 0)
            return false;
        xml->at += 2;
        if (!read_text(xml, '"'))
            return false;
        xml->at++;
    }
    return true;
}

static bool read_tag(struct xml *xml)
{
    char name[NAME_MAX_BYTES];

    xml->at++; /* '<' */
    if (*xml->at == '/') {
        xml->at++;
        if (!read_name(xml, name) || xml->depth == 0 || strcmp(name, xml->open[--xml->depth]) != 0)
            return false;
    } else {
        if (!read_name(xml, name) || !read_attributes(xml))
            return false;
        if (*xml->at == '/') {
            xml->at++;
        } else {
            if (xml->depth == DEPTH_MAX)
                return false;
            memcpy(xml->open[xml->depth++], name, sizeof(name));
        }
    }
    if (*xml->at != '>')
        return false;
    xml->at++;
    return true;
}

static const char *find_fault(const char *text)
{
    struct xml xml = {.at = text};

    while (*xml.at) {
        bool is_good = *xml.at == '<'                      ? read_tag(&xml)
                       : *xml.at == '\n' && xml.depth == 0 ? (xml.at++, true)
                                                           : read_text(&xml, '<');

        if (!is_good)
            return *xml.at ? xml.at : "the end";
    }
    return xml.depth > 0 ? "the end" : NULL;
}

static const double steps[] = {1, 2, 3, 4, 5};
static const double rising[] = {0.1, 0.2, 0.15, 0.4, 0.6};
static const double flat[] = {0.5, 0.5, 0.5, 0.5, 0.5};
static const double huge[] = {-1e300, 1e300, 0, 1e-300, 2};

struct plot_case {
    const char *label;
    struct rk_plot plot;
    const char *shows[3];
};

static const struct plot_case cases[] = {
    {"five points with an average",
     {"digits", "step", "mean reward", 5, steps, rising, 3},
     {">digits</text>", ">mean reward</text>", ">0.6</text>"}},
    {"no points", {"empty", "step", "reward", 0, steps, rising, 10}, {">empty</text>", ">1</text>"}},
    {"one point", {"one", "step", "reward", 1, steps, rising, 10}, {"<polyline"}},
    {"all the same", {"flat", "step", "reward", 5, steps, flat, 0}, {">0.4</text>", ">0.6</text>"}},
    {"extreme values", {"huge", "step", "reward", 5, steps, huge, 2}, {"<polyline"}},
    {"markup in the title",
     {"a<b & \"c\">\x01", "step", "reward", 5, steps, rising, 0},
     {"a&lt;b &amp; \"c\"&gt;<"}},
};

static void test_plot_svg_is_well_formed_and_shows_its_input(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_str svg = {0};
        const char *fault;

        print_message("%s\n", cases[i].label);
        rk_plot_svg(&svg, &cases[i].plot);
        fault = find_fault(rk_str_text(&svg));
        if (fault)
            fail_msg("not well-formed at: %.60s", fault);
        assert_null(strstr(rk_str_text(&svg), "nan"));
        assert_null(strstr(rk_str_text(&svg), "inf"));
        for (size_t j = 0; j < RK_ARRAY_LEN(cases[i].shows) && cases[i].shows[j]; j++) {
            if (!strstr(rk_str_text(&svg), cases[i].shows[j]))
                fail_msg("'%s' is missing", cases[i].shows[j]);
        }
        rk_str_fini(&svg);
    }
}

/* Goal: the checker above does find faults. */
static void test_find_fault_broken_documents_are_found(void **state)
{
    static const char *const broken[] = {"<a>",          "</a>", "<a><b></a></b>", "<a x=1/>", "<a>&</a>",
                                         "<a b=\"<\"/>", "<a/"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(broken); i++) {
        print_message("%s\n", broken[i]);
        assert_non_null(find_fault(broken[i]));
    }
    assert_null(find_fault("<a x=\"1\"><b/>text &lt;</a>\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plot_svg_is_well_formed_and_shows_its_input),
        cmocka_unit_test(test_find_fault_broken_documents_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
