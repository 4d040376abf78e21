/* Thrift's compact protocol, as far as Parquet's metadata needs it. Reads stop at the end of the text: after
 * an error every read returns 0, and is_bad is set. */
#ifndef RK_THRIFT_INTERNAL_H
#define RK_THRIFT_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RK_THRIFT_TRUE   1
#define RK_THRIFT_FALSE  2
#define RK_THRIFT_BYTE   3
#define RK_THRIFT_I16    4
#define RK_THRIFT_I32    5
#define RK_THRIFT_I64    6
#define RK_THRIFT_DOUBLE 7
#define RK_THRIFT_BINARY 8
#define RK_THRIFT_LIST   9
#define RK_THRIFT_SET    10
#define RK_THRIFT_MAP    11
#define RK_THRIFT_STRUCT 12

struct rk_thrift {
    const uint8_t *at, *end;
    bool is_bad;
};

/* Zero-initialise for every struct that is read. */
struct rk_thrift_field {
    int32_t id;
    int type; /* RK_THRIFT_* */
};

/* The next field of a struct; false at its end, and after an error. Every field is read or skipped. */
bool rk_thrift_next(struct rk_thrift *in, struct rk_thrift_field *field);
void rk_thrift_skip(struct rk_thrift *in, int type);
uint64_t rk_thrift_varint(struct rk_thrift *in);
/* The integer or boolean of the field; 0 and an error when it has another type. */
int64_t rk_thrift_int(struct rk_thrift *in, const struct rk_thrift_field *field);
const uint8_t *rk_thrift_binary(struct rk_thrift *in, const struct rk_thrift_field *field, size_t *bytes);
/* Elements of the list field, which have this type; 0 and an error otherwise. */
int64_t rk_thrift_list(struct rk_thrift *in, const struct rk_thrift_field *field, int type);
/* Whether the field is a struct, to be read next; an error when it is not. */
bool rk_thrift_is_struct(struct rk_thrift *in, const struct rk_thrift_field *field);

#endif
