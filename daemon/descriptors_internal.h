/* The .proto files of the services that the daemon serves, as protoc describes them: a
 * google.protobuf.FileDescriptorSet that is made when rankd is built. What a file declares is found in its
 * bytes; nothing is unpacked or allocated. */
#ifndef RK_DESCRIPTORS_INTERNAL_H
#define RK_DESCRIPTORS_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/rk_messages.h"

#define RK_DESCRIPTOR_FILES_MAX 16
#define RK_DESCRIPTOR_NONE      (-1)

/* Index of the file with that name ("rankd/v1/worker.proto"). */
int32_t rk_descriptor_find_file(const char *name);
/* Index of the file that declares it: the full name, without a leading dot, of a message, a field or oneof of
 * one, an enum, a value of one (which stands beside its enum), a service or a method. */
int32_t rk_descriptor_find_symbol(const char *symbol);
/* Whether there is a message with that full name. */
bool rk_descriptor_has_message(const char *name);
/* The serialised google.protobuf.FileDescriptorProto. */
struct rk_bytes rk_descriptor_get(int32_t file);
/* The file, then what it imports, directly or not, each once. Returns how many. */
int32_t rk_descriptor_list_imports(int32_t out[RK_DESCRIPTOR_FILES_MAX], int32_t file);

#endif
