/* Tables of the batch: tensors, string columns, options and meta. */
#include "proto/record_internal.h"

#include "proto/limits.h"
#include "rankd/v1/common.pb-c.h"

#include <inttypes.h>

static struct rk_status *check_tensor_spec(const void *value)
{
    const struct rk_tensor_spec *spec = value;

    if (!rk_dtype_is_valid((int)spec->dtype))
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "tensor '%s': no dtype", spec->name);
    return NULL;
}

static struct rk_status *check_batch_spec(const void *value)
{
    const struct rk_batch_spec *spec = value;

    if (spec->batch_size < 0)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "batch_size=%" PRId64 " is negative",
                              spec->batch_size);
    return rk_meta_check(&spec->meta);
}

static const struct rk_field tensor_spec_fields[] = {
    RK_ONE(TEXT, rk_tensor_spec, "name", name, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(ENUM, rk_tensor_spec, "dtype", dtype),
    RK_MANY(I64S, rk_tensor_spec, "shape", shape, rank, BYTES, .max_entries = RK_LIMIT_TENSOR_RANK),
    RK_MANY(I64S, rk_tensor_spec, "cu_seqlens", cu_seqlens, num_cu_seqlens, BYTES),
    RK_ONE(U64, rk_tensor_spec, "byte_size", byte_size),
};
static RK_RECORD(record_tensor_spec, rankd__v1__tensor_spec__descriptor, rk_tensor_spec, tensor_spec_fields,
                 .check = check_tensor_spec);

static const struct rk_field string_column_fields[] = {
    RK_ONE(TEXT, rk_string_column, "name", name, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_MANY(TEXTS, rk_string_column, "value", values, num_values, STRINGS),
    RK_ONE(BOOL, rk_string_column, "json", is_json),
};
static RK_RECORD(record_string_column, rankd__v1__string_column__descriptor, rk_string_column,
                 string_column_fields);

static const struct rk_field scalar_fields[] = {
    RK_ONE(REAL, rk_scalar, "f", real, .selected_kind = RK_SCALAR_REAL),
    RK_ONE(I64, rk_scalar, "i", integer, .selected_kind = RK_SCALAR_INT),
    RK_ONE(TEXT, rk_scalar, "s", text, .selected_kind = RK_SCALAR_STRING),
    RK_ONE(BOOL, rk_scalar, "b", boolean, .selected_kind = RK_SCALAR_BOOL),
    RK_ONE(TEXT, rk_scalar, "json", json, .selected_kind = RK_SCALAR_JSON),
};
static RK_RECORD(record_scalar, rankd__v1__scalar__descriptor, rk_scalar, scalar_fields, .has_kind = true,
                 .kind_offset = offsetof(struct rk_scalar, kind), .check = rk_scalar_check);

static const struct rk_field meta_entry_fields[] = {
    RK_ONE(TEXT, rk_meta_entry, "key", key, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_SUB(rk_meta_entry, "value", value, record_scalar),
};
RK_RECORD(rk_record_meta_entry, rankd__v1__meta_entry__descriptor, rk_meta_entry, meta_entry_fields);

static const struct rk_field batch_spec_fields[] = {
    RK_ONE(I64, rk_batch_spec, "batch_size", batch_size),
    RK_SUBS(rk_batch_spec, "tensor", tensors, num_tensors, TENSORS, record_tensor_spec),
    RK_SUBS(rk_batch_spec, "column", columns, num_columns, TENSORS, record_string_column),
    RK_SUBS(rk_batch_spec, "meta", meta.entries, meta.count, META, rk_record_meta_entry),
};
RK_RECORD(rk_record_batch_spec, rankd__v1__data_proto_spec__descriptor, rk_batch_spec, batch_spec_fields,
          .check = check_batch_spec);

static const struct rk_field field_info_fields[] = {
    RK_ONE(TEXT, rk_field_info, "name", name, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(ENUM, rk_field_info, "dtype", dtype),
    RK_ONE(TEXT, rk_field_info, "dims", dims, .max_bytes = RK_LIMIT_DOC_BYTES),
    RK_ONE(BOOL, rk_field_info, "required", is_required),
    RK_ONE(TEXT, rk_field_info, "doc", doc, .max_bytes = RK_LIMIT_DOC_BYTES),
};
RK_RECORD(rk_record_field_info, rankd__v1__field_info__descriptor, rk_field_info, field_info_fields);
