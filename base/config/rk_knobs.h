/* Definitions that derive from the rows of base/config/knobs.def: fields of a struct, and their reading from
 * options.
 *
 *   struct rk_clip_config {
 *       RK_CLIP_KNOBS(RK_KNOB_FIELD, , , )
 *       ...
 *   };
 *   static const struct rk_knob knobs[] = {RK_CLIP_KNOBS(RK_KNOB_ROW, struct rk_clip_config, , )};
 *   RK_TRY(rk_knobs_read(&config, knobs, RK_ARRAY_LEN(knobs), options));
 *
 *   type     in C               in a job  as an option
 *   BOOL     bool               bool      bool
 *   INT      int64_t            int       int
 *   INT32    int32_t            int       int
 *   REAL     double             real      real
 *   STRING   char [32]          string    string
 *   TEXT     char [256]         string    string
 *   PAIR     double [2]         list      list */
#ifndef RK_KNOBS_H
#define RK_KNOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config/knobs.def"
#include "base/config/rk_config.h"

RK_BEGIN_DECLS

#define RK_KNOB_TEXT_BYTES      32  /* of a STRING, with its NUL: names of choices */
#define RK_KNOB_LONG_TEXT_BYTES 256 /* of a TEXT: lists */

typedef enum rk_knob_type {
    RK_KNOB_BOOL,
    RK_KNOB_INT,
    RK_KNOB_INT32,
    RK_KNOB_REAL,
    RK_KNOB_STRING,
    RK_KNOB_TEXT,
    RK_KNOB_PAIR
} rk_knob_type_t;

struct rk_knob {
    struct rk_config_key key; /* path: the option's name */
    rk_knob_type_t type;
    size_t offset; /* of the field */
};

/* --- a field of a struct --- */
#define RK_KNOB_FIELD(a, b, c, field, key, type, ...) RK_KNOB_FIELD_##type(field)
#define RK_KNOB_FIELD_BOOL(field)                     bool field;
#define RK_KNOB_FIELD_INT(field)                      int64_t field;
#define RK_KNOB_FIELD_INT32(field)                    int32_t field;
#define RK_KNOB_FIELD_REAL(field)                     double field;
#define RK_KNOB_FIELD_STRING(field)                   char field[RK_KNOB_TEXT_BYTES];
#define RK_KNOB_FIELD_TEXT(field)                     char field[RK_KNOB_LONG_TEXT_BYTES];
#define RK_KNOB_FIELD_PAIR(field)                     double field[2];

/* Unit of knobs that are named *_megabytes. */
#define RK_BYTES_PER_MEGABYTE ((int64_t)1 << 20)

/* --- types elsewhere: RK_KNOB_CONFIG_INT32 is the name of a rk_config_type_t without its prefix --- */
#define RK_KNOB_CONFIG_BOOL   BOOL
#define RK_KNOB_CONFIG_INT    INT
#define RK_KNOB_CONFIG_INT32  INT
#define RK_KNOB_CONFIG_REAL   REAL
#define RK_KNOB_CONFIG_STRING STRING
#define RK_KNOB_CONFIG_TEXT   STRING
#define RK_KNOB_CONFIG_PAIR   LIST

/* --- a row of struct rk_knob; a is the struct --- */
#define RK_KNOB_ROW(a, b, c, field, key, type, ...) \
    RK_KNOB_ROW_(a, field, key, RK_KNOB_##type, RK_KNOB_CONFIG_##type, __VA_ARGS__)
#define RK_KNOB_ROW_(a, field, ...) RK_KNOB_ROW__(offsetof(a, field), __VA_ARGS__)
#define RK_KNOB_ROW__(offset, key, knob_type, config_type, def, min, max, choices, flags, help) \
    {{key, RK_CONFIG_##config_type, def, (double)(min), (double)(max), choices, flags, help},   \
     knob_type,                                                                                 \
     offset},

/* --- the number of rows of a group: 0 RK_CLIP_KNOBS(RK_KNOB_COUNT, , , ) --- */
#define RK_KNOB_COUNT(a, b, c, ...) +1

/* Checks every row's option and fills its field. An option that is null is unset if the row allows it.
 * INVALID_ARGUMENT names option, expectation and value. */
struct rk_status *rk_knobs_read(void *out, const struct rk_knob *knobs, int64_t num_knobs,
                                const struct rk_json *options) RK_NODISCARD;

RK_END_DECLS

#endif
