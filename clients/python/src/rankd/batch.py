"""The batch: named columns with a common number of rows, and meta (docs/dispatch.md)."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from rankd.errors import RankdError
from rankd.v1 import common_pb2 as pb

#: Dtypes that numpy supports. Others are Encoded.
NUMPY_DTYPES: Dict[str, "np.dtype[Any]"] = {
    "BOOL": np.dtype(np.bool_), "U8": np.dtype(np.uint8), "I8": np.dtype(np.int8), "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"), "I64": np.dtype("<i8"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
#: Dtypes that numpy does not support, with the unsigned integers for their bits.
ENCODED_DTYPES: Dict[str, "np.dtype[Any]"] = {
    "BF16": np.dtype("<u2"), "F8E4M3": np.dtype(np.uint8), "F8E5M2": np.dtype(np.uint8),
}
_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


class Encoded:
    """An array of a dtype that numpy lacks (BF16, F8E4M3, F8E5M2): its bits as unsigned integers."""

    def __init__(self, dtype: str, bits: "np.ndarray[Any, Any]") -> None:
        if dtype not in ENCODED_DTYPES:
            raise ValueError(f"dtype={dtype!r}, expected one of {', '.join(ENCODED_DTYPES)}")
        if bits.dtype != ENCODED_DTYPES[dtype]:
            raise ValueError(f"bits of {dtype} are {ENCODED_DTYPES[dtype]}, got {bits.dtype}")
        self.dtype = dtype
        self.bits = bits

    @classmethod
    def bfloat16(cls, values: "np.ndarray[Any, Any]") -> "Encoded":
        """Rounds float32 values to nearest even."""
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        nan = np.isnan(values)
        return cls("BF16", np.where(nan, np.uint16(0x7FC0), rounded).astype("<u2"))

    def float32(self) -> "np.ndarray[Any, Any]":
        """The exact values. Only for BF16."""
        if self.dtype != "BF16":
            raise ValueError(f"float32() is for BF16, this is {self.dtype}")
        return (self.bits.astype("<u4") << 16).view("<f4")

    def __len__(self) -> int:
        return len(self.bits)


class Packed:
    """Rows of different lengths: row i is values[cu_seqlens[i]:cu_seqlens[i + 1]]."""

    def __init__(self, values: "np.ndarray[Any, Any]", cu_seqlens: Sequence[int]) -> None:
        cu = np.asarray(cu_seqlens, dtype=np.int64)
        if cu.ndim != 1 or len(cu) < 1 or cu[0] != 0 or (np.diff(cu) < 0).any() or cu[-1] != len(values):
            raise ValueError(f"cu_seqlens must rise from 0 to the {len(values)} values")
        self.values = values
        self.cu_seqlens = cu

    def __len__(self) -> int:
        return len(self.cu_seqlens) - 1


class Json(List[Any]):
    """A column of values that are sent as JSON text, one per row. A plain list is a column of strings."""


Column = Union["np.ndarray[Any, Any]", Encoded, Packed, Json, List[str]]


def _boundaries(lengths: Sequence[int]) -> List[int]:
    return [0, *(int(n) for n in np.cumsum(lengths))]


def _take(column: Column, rows: "np.ndarray[Any, Any]") -> Column:
    if isinstance(column, Encoded):
        return Encoded(column.dtype, column.bits[rows])
    if isinstance(column, Packed):
        parts = [column.values[column.cu_seqlens[i]:column.cu_seqlens[i + 1]] for i in rows]
        values = np.concatenate(parts) if parts else column.values[:0]
        return Packed(values, _boundaries([len(part) for part in parts]))
    if isinstance(column, np.ndarray):
        picked: "np.ndarray[Any, Any]" = column[rows]
        return picked
    return type(column)([column[int(i)] for i in rows])


def _concat(columns: Sequence[Column]) -> Column:
    first = columns[0]
    if isinstance(first, Encoded):
        return Encoded(first.dtype, np.concatenate([c.bits for c in columns]))  # type: ignore[union-attr]
    if isinstance(first, Packed):
        lengths = [n for c in columns for n in np.diff(c.cu_seqlens)]  # type: ignore[union-attr]
        values = np.concatenate([c.values for c in columns])  # type: ignore[union-attr]
        return Packed(values, _boundaries(lengths))
    if isinstance(first, np.ndarray):
        joined: "np.ndarray[Any, Any]" = np.concatenate(columns)  # type: ignore[arg-type]
        return joined
    return type(first)([value for column in columns for value in column])  # type: ignore[union-attr]


class Batch(Dict[str, Column]):
    """A dict of columns with `meta`. All columns have the same number of rows; arrays are shared, not copied."""

    def __init__(self, columns: Optional[Mapping[str, Column]] = None,
                 meta: Optional[Mapping[str, Any]] = None, num_rows: Optional[int] = None) -> None:
        super().__init__(columns or {})
        self.meta: Dict[str, Any] = dict(meta or {})
        self._num_rows = num_rows

    @property
    def num_rows(self) -> int:
        """Rows of the columns; without columns, the number given at creation, or 0."""
        lengths = {name: len(column) for name, column in self.items()}
        for name, length in lengths.items():
            if length != next(iter(lengths.values())):
                first = next(iter(lengths))
                raise ValueError(f"column {name} has {length} rows, {first} has {lengths[first]}")
        return next(iter(lengths.values()), self._num_rows or 0)

    def array(self, name: str) -> "np.ndarray[Any, Any]":
        """The dense column of that name."""
        column = self[name]
        if not isinstance(column, np.ndarray):
            raise TypeError(f"column {name} is {type(column).__name__}, expected an array")
        return column

    def select(self, *names: str) -> "Batch":
        """These columns, and meta. KeyError names a missing column."""
        return Batch({name: self[name] for name in names}, self.meta)

    def rows(self, rows: Union[slice, Iterable[int]]) -> "Batch":
        """Rows by slice or by index, order and repeats kept."""
        index = np.arange(self.num_rows)[rows if isinstance(rows, slice) else np.asarray(list(rows), dtype=np.int64)]
        return Batch({name: _take(column, index) for name, column in self.items()}, self.meta, len(index))

    def chunk(self, k: int) -> List["Batch"]:
        """k equal parts."""
        n = self.num_rows
        if n % k:
            raise ValueError(f"only support equal chunk: {n} rows do not divide by {k}")
        return [self.rows(slice(i * n // k, (i + 1) * n // k)) for i in range(k)]

    def union(self, other: Mapping[str, Column]) -> "Batch":
        """This batch plus the columns of another one; columns with equal names must be equal."""
        for name in set(self) & set(other):
            same = np.array_equal(np.asarray(self[name]), np.asarray(other[name]))
            if not same:
                raise ValueError(f"column {name} differs between the two batches of a union")
        merged = Batch({**self, **other}, {**self.meta, **getattr(other, "meta", {})})
        merged.num_rows
        return merged


def as_batch(columns: Mapping[str, Column]) -> Batch:
    """A Batch as it is, and a plain dict as a Batch of the same columns."""
    return columns if isinstance(columns, Batch) else Batch(columns)


def concat(parts: Sequence[Mapping[str, Column]]) -> Batch:
    """Concatenates rows. `metrics` of meta is dropped; other keys must be equal in all batches that have them."""
    batches = [as_batch(part) for part in parts]
    meta: Dict[str, Any] = {}
    for batch in batches:
        if set(batch) != set(batches[0]):
            raise ValueError(f"columns {sorted(batch)} and {sorted(batches[0])}: expected the same in all parts")
        for key, value in batch.meta.items():
            if key != "metrics" and meta.setdefault(key, value) != value:
                raise ValueError(f"meta {key} is {meta[key]!r} in one part and {value!r} in another")
    columns = {name: _concat([batch[name] for batch in batches]) for name in batches[0]}
    return Batch(columns, meta, sum(batch.num_rows for batch in batches))


# --- on the wire ---

def to_scalar(value: Any) -> "pb.Scalar":
    """Converts an option or an entry of meta."""
    if isinstance(value, (bool, np.bool_)):
        return pb.Scalar(b=bool(value))
    if isinstance(value, (int, np.integer)):
        return pb.Scalar(i=int(value))
    if isinstance(value, (float, np.floating)):
        return pb.Scalar(f=float(value))
    if isinstance(value, str):
        return pb.Scalar(s=value)
    return pb.Scalar(json=json.dumps(value))


def from_scalar(scalar: "pb.Scalar") -> Any:
    kind = scalar.WhichOneof("v")
    value = getattr(scalar, kind) if kind else None
    return json.loads(value) if kind == "json" else value


def entries(values: Optional[Mapping[str, Any]]) -> List["pb.MetaEntry"]:
    return [pb.MetaEntry(key=key, value=to_scalar(value)) for key, value in (values or {}).items()]


def _tensor_of(name: str, column: Union["np.ndarray[Any, Any]", Encoded, Packed]) -> Tuple["pb.TensorSpec", memoryview]:
    values: Any = column.values if isinstance(column, Packed) else column
    if isinstance(values, Encoded):
        dtype, values = values.dtype, values.bits
    else:
        known = values.dtype.newbyteorder("<") if values.dtype.itemsize > 1 else values.dtype
        if known not in _NAMES:
            raise ValueError(f"column {name} has dtype {values.dtype}, expected one of "
                             f"{', '.join(str(d) for d in _NAMES)}, or Encoded")
        dtype, values = _NAMES[known], values.astype(known, copy=False)
    values = np.ascontiguousarray(values)
    spec = pb.TensorSpec(name=name, dtype=pb.DType.Value(dtype), shape=values.shape, byte_size=values.nbytes)
    if isinstance(column, Packed):
        spec.cu_seqlens.extend(int(i) for i in column.cu_seqlens)
    return spec, memoryview(values.reshape(-1).view(np.uint8))


def encode(batch: Batch) -> Tuple["pb.DataProtoSpec", List[memoryview]]:
    """The description of a batch, and views of its tensors' bytes."""
    spec = pb.DataProtoSpec(batch_size=batch.num_rows, meta=entries(batch.meta))
    data: List[memoryview] = []
    for name, column in batch.items():
        if isinstance(column, (np.ndarray, Encoded, Packed)):
            tensor, view = _tensor_of(name, column)
            spec.tensor.append(tensor)
            data.append(view)
        elif isinstance(column, Json):
            spec.column.append(pb.StringColumn(name=name, value=[json.dumps(v) for v in column], json=True))
        else:
            spec.column.append(pb.StringColumn(name=name, value=column))
    return spec, data


class Assembler:
    """Copies the chunks of a result to their offsets."""

    def __init__(self, spec: "pb.DataProtoSpec") -> None:
        self._spec = spec
        self._buffers: List["np.ndarray[Any, Any]"] = []
        self._filled: List[int] = []
        for tensor in spec.tensor:
            dtype = self._dtype_of(tensor)
            size = int(np.prod(list(tensor.shape), dtype=np.int64)) * dtype.itemsize
            if size != tensor.byte_size:
                raise RankdError("INTERNAL", "", f"column {tensor.name} has {tensor.byte_size} bytes, its shape {size}")
            self._buffers.append(np.empty(size, np.uint8))
            self._filled.append(0)

    @staticmethod
    def _dtype_of(tensor: "pb.TensorSpec") -> "np.dtype[Any]":
        name = pb.DType.Name(tensor.dtype)
        if name not in NUMPY_DTYPES and name not in ENCODED_DTYPES:
            raise RankdError("INTERNAL", "", f"column {tensor.name} has an unknown dtype")
        return NUMPY_DTYPES.get(name) or ENCODED_DTYPES[name]

    def add(self, tensor: int, offset: int, data: bytes) -> None:
        if tensor >= len(self._buffers) or offset != self._filled[tensor] or \
                offset + len(data) > len(self._buffers[tensor]):
            raise RankdError("INTERNAL", "", f"a chunk of {len(data)} bytes at {offset} of tensor {tensor} does not fit")
        self._buffers[tensor][offset:offset + len(data)] = np.frombuffer(data, np.uint8)
        self._filled[tensor] += len(data)

    def finish(self) -> Batch:
        batch = Batch(meta={entry.key: from_scalar(entry.value) for entry in self._spec.meta},
                      num_rows=self._spec.batch_size)
        for tensor, buffer, filled in zip(self._spec.tensor, self._buffers, self._filled):
            if filled != len(buffer):
                raise RankdError("DATA_LOSS", "", f"column {tensor.name} ended after {filled} of {len(buffer)} bytes")
            values: Any = buffer.view(self._dtype_of(tensor)).reshape(list(tensor.shape))
            name = pb.DType.Name(tensor.dtype)
            if name in ENCODED_DTYPES:
                values = Encoded(name, values)
            batch[tensor.name] = Packed(values, list(tensor.cu_seqlens)) if tensor.cu_seqlens else values
        for column in self._spec.column:
            batch[column.name] = Json(map(json.loads, column.value)) if column.json else list(column.value)
        return batch
