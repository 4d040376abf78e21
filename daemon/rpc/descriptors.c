/* Walks over serialised descriptors (google/protobuf/descriptor.proto). They are part of this program, so
 * an invalid one is a bug. */
#include "daemon/rpc/descriptors_internal.h"

#include <string.h>

#include "base/rk_assert.h"
#include "proto/rk_wire.h"

static const uint8_t descriptor_set[] = {
#include "generated/descriptors.h"
};

/* Field numbers. */
enum { SET_FILE = 1 };
enum { FILE_NAME = 1, FILE_PACKAGE = 2, FILE_DEPENDENCY = 3 };
enum { NODE_NAME = 1 }; /* of every named node below a file */

typedef enum node {
    NODE_FILE,
    NODE_MESSAGE,
    NODE_ENUM,
    NODE_SERVICE,
    NODE_LEAF /* declares nothing further: a field, a oneof, an extension, a method */
} node_t;

enum { ENUM_VALUE = 2 }; /* field of an enum; its values belong to the enclosing scope */

/* The kinds that a node declares in its own scope, and their fields. */
static const struct {
    node_t parent;
    uint32_t number;
    node_t child;
} members[] = {
    {NODE_FILE, 4, NODE_MESSAGE}, {NODE_FILE, 5, NODE_ENUM},    {NODE_FILE, 6, NODE_SERVICE},
    {NODE_FILE, 7, NODE_LEAF},    {NODE_MESSAGE, 2, NODE_LEAF}, {NODE_MESSAGE, 3, NODE_MESSAGE},
    {NODE_MESSAGE, 4, NODE_ENUM}, {NODE_MESSAGE, 6, NODE_LEAF}, {NODE_MESSAGE, 8, NODE_LEAF},
    {NODE_SERVICE, 2, NODE_LEAF},
};

/* Takes the next field; *value is empty unless it has a length. False at the end. */
static bool next_field(struct rk_bytes *in, uint32_t *number, struct rk_bytes *value)
{
    struct rk_wire_field field;

    if (in->bytes == 0)
        return false;
    RK_ASSERT(rk_wire_next(in, &field));
    RK_ASSERT(field.type == RK_WIRE_VARINT || field.type == RK_WIRE_LENGTH); /* descriptors have no others */
    *number = field.number;
    *value = field.type == RK_WIRE_LENGTH ? field.bytes : (struct rk_bytes){in->data, 0};
    return true;
}

/* The first field of that number; empty when there is none. */
static struct rk_bytes find_field(struct rk_bytes in, uint32_t wanted)
{
    struct rk_bytes value;
    uint32_t number;

    while (next_field(&in, &number, &value)) {
        if (number == wanted)
            return value;
    }
    return (struct rk_bytes){0};
}

static bool is_equal(struct rk_bytes name, const char *text)
{
    return strlen(text) == name.bytes && memcmp(name.data, text, name.bytes) == 0;
}

/* The text after "NAME."; NULL when it does not begin with that. */
static const char *skip_scope(struct rk_bytes name, const char *text)
{
    if (strncmp(text, (const char *)name.data, name.bytes) != 0 || text[name.bytes] != '.')
        return NULL;
    return text + name.bytes + 1;
}

static bool has_value(struct rk_bytes in, const char *symbol)
{
    struct rk_bytes value;
    uint32_t number;

    while (next_field(&in, &number, &value)) {
        if (number == ENUM_VALUE && is_equal(find_field(value, NODE_NAME), symbol))
            return true;
    }
    return false;
}

static bool declares(struct rk_bytes node, node_t kind, const char *symbol, node_t wanted);

/* Whether that child of a node is what `symbol` names in the node's scope, or declares it. */
static bool matches(struct rk_bytes child, node_t kind, const char *symbol, node_t wanted)
{
    struct rk_bytes name = find_field(child, NODE_NAME);
    const char *rest;

    if (is_equal(name, symbol))
        return wanted == NODE_FILE || wanted == kind;
    if (kind == NODE_ENUM && wanted == NODE_FILE)
        return has_value(child, symbol);
    rest = skip_scope(name, symbol);
    return rest && declares(child, kind, rest, wanted);
}

/* Whether `node` declares the symbol, a name in its scope; as a node of the kind `wanted`, unless that is
 * NODE_FILE, which stands for any. */
static bool declares(struct rk_bytes node, node_t kind, const char *symbol, node_t wanted)
{
    struct rk_bytes child;
    uint32_t number;

    while (next_field(&node, &number, &child)) {
        for (size_t i = 0; i < RK_ARRAY_LEN(members); i++) {
            if (members[i].parent == kind && members[i].number == number &&
                matches(child, members[i].child, symbol, wanted))
                return true;
        }
    }
    return false;
}

/* --- files --- */

struct rk_bytes rk_descriptor_get(int32_t file)
{
    struct rk_bytes set = {.data = descriptor_set, .bytes = sizeof(descriptor_set)}, value;
    uint32_t number;

    RK_ASSERT(file >= 0);
    while (next_field(&set, &number, &value)) {
        if (number == SET_FILE && file-- == 0)
            return value;
    }
    return (struct rk_bytes){0}; /* after the last */
}

static int32_t find_file(struct rk_bytes name)
{
    for (int32_t i = 0;; i++) {
        struct rk_bytes file = rk_descriptor_get(i), file_name;

        if (!file.data)
            return RK_DESCRIPTOR_NONE;
        file_name = find_field(file, FILE_NAME);
        if (file_name.bytes == name.bytes && memcmp(file_name.data, name.data, name.bytes) == 0)
            return i;
    }
}

int32_t rk_descriptor_find_file(const char *name)
{
    return find_file((struct rk_bytes){.data = (const uint8_t *)name, .bytes = strlen(name)});
}

static int32_t find_symbol(const char *symbol, node_t wanted)
{
    for (int32_t i = 0;; i++) {
        struct rk_bytes file = rk_descriptor_get(i);
        const char *rest;

        if (!file.data)
            return RK_DESCRIPTOR_NONE;
        rest = skip_scope(find_field(file, FILE_PACKAGE), symbol);
        if (rest && declares(file, NODE_FILE, rest, wanted))
            return i;
    }
}

int32_t rk_descriptor_find_symbol(const char *symbol)
{
    return find_symbol(symbol, NODE_FILE);
}

bool rk_descriptor_has_message(const char *name)
{
    return find_symbol(name, NODE_MESSAGE) != RK_DESCRIPTOR_NONE;
}

static bool is_listed(const int32_t *list, int32_t count, int32_t file)
{
    for (int32_t i = 0; i < count; i++) {
        if (list[i] == file)
            return true;
    }
    return false;
}

int32_t rk_descriptor_list_imports(int32_t out[RK_DESCRIPTOR_FILES_MAX], int32_t file)
{
    int32_t count = 0;

    out[count++] = file;
    for (int32_t i = 0; i < count; i++) {
        struct rk_bytes in = rk_descriptor_get(out[i]), value;
        uint32_t number;

        while (next_field(&in, &number, &value)) {
            int32_t import = number == FILE_DEPENDENCY ? find_file(value) : RK_DESCRIPTOR_NONE;

            RK_ASSERT(number != FILE_DEPENDENCY || import != RK_DESCRIPTOR_NONE);
            if (import == RK_DESCRIPTOR_NONE || is_listed(out, count, import))
                continue;
            RK_ASSERT(count < RK_DESCRIPTOR_FILES_MAX);
            out[count++] = import;
        }
    }
    return count;
}
