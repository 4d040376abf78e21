"""Makes tests/golden/parquet: Parquet files of pyarrow, pandas and datasets in the forms that data for RL and SFT
comes in, and the rows of each as JSON Lines, converted by share/rankd/python/rankd_parquet_to_jsonl.py.

Usage: make_parquet.py OUT_FOLDER      (pyarrow 26.0.1, pandas 3.1.1, datasets 5.2.0; seed 7)
"""
import datetime
import decimal
import os
import random
import sys

import datasets
import numpy
import pandas
import pyarrow
import pyarrow.parquet

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
sys.path.insert(0, os.path.join(ROOT, "share", "rankd", "python"))
import rankd_parquet_to_jsonl as converter  # noqa: E402

random.seed(7)
NUM_ROWS = 40


def rl_rows(count=NUM_ROWS):
    """Rows of verl's RLHFDataset, with members that only some rows have."""
    rows = []
    for i in range(count):
        a, b = random.randrange(1000), random.randrange(1000)
        rows.append({
            "data_source": ("openai/gsm8k", "math_dapo", "größe/日本")[i % 3],
            "prompt": [{"role": "user", "content": f"{a} + {b} = ? 😀\0" if i % 9 == 0 else f"{a} + {b} = ?"}],
            "ability": "math",
            "reward_model": {"style": "rule-lighteval/MATH_v2", "ground_truth": str(a + b)},
            "extra_info": {"index": i, "split": "train", "ratio": i / 7 if i % 4 else None,
                           "tags": [f"t{k}" for k in range(i % 4)] if i % 5 else None,
                           "tools_kwargs": {"calc": {"create_kwargs": {"truth": str(a)}}} if i % 2 else None},
        })
    return rows


def sft_rows():
    call = {"type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}
    rows = []
    for i in range(NUM_ROWS):
        turns = [{"role": "user", "content": f"q{i}", "tool_calls": None},
                 {"role": "assistant", "content": "", "tool_calls": [call] * (i % 3) or None},
                 {"role": "assistant", "content": f"a{i}", "tool_calls": None}]
        rows.append({"messages": turns[:2 + i % 2] if i % 7 else [], "tools": "[]" if i % 2 else None,
                     "enable_thinking": i % 3 == 0 if i % 4 else None})
    return rows


def typed_table():
    """Every type of column that has a JSON form."""
    count = 12
    none = [i % 4 == 3 for i in range(count)]

    def column(values, kind):
        return pyarrow.array([None if n else v for v, n in zip(values, none)], type=kind)

    when = datetime.datetime(2024, 2, 29, 23, 59, 58, 123456)
    times = [when + datetime.timedelta(days=400 * (i - 6), seconds=i) for i in range(count)]
    decimals = [decimal.Decimal(7 ** i * (-1) ** i).scaleb(-9) for i in range(count)]
    return pyarrow.table({
        "int8": column([i - 6 for i in range(count)], pyarrow.int8()),
        "uint8": column([250 + i % 6 for i in range(count)], pyarrow.uint8()),
        "uint32": column([2 ** 32 - 1 - i for i in range(count)], pyarrow.uint32()),
        "int64": column([-2 ** 63 + i for i in range(count)], pyarrow.int64()),
        "uint64": column([2 ** 63 - 1 - i for i in range(count)], pyarrow.uint64()),
        "half": column(numpy.array([2 ** -24, 0.333, 65504, 1, -2, 0, 3, 4, 5, 6, 7, 8], dtype=numpy.float16),
                       pyarrow.float16()),
        "float": column([i / 3 for i in range(count)], pyarrow.float32()),
        "double": column([i / 3 * 1e300 for i in range(count)], pyarrow.float64()),
        "bool": column([i % 3 == 0 for i in range(count)], pyarrow.bool_()),
        "text": column([f"é{i}" for i in range(count)], pyarrow.string()),
        "large_text": column(["x" * i for i in range(count)], pyarrow.large_string()),
        "category": column([f"c{i % 3}" for i in range(count)], pyarrow.string()).dictionary_encode(),
        "date": column([t.date() for t in times], pyarrow.date32()),
        "time_ms": column([t.time().replace(microsecond=5000) for t in times], pyarrow.time32("ms")),
        "time_us": column([t.time() for t in times], pyarrow.time64("us")),
        "stamp_s": column([t.replace(microsecond=0) for t in times], pyarrow.timestamp("s")),
        "stamp_us": column(times, pyarrow.timestamp("us")),
        "stamp_utc": column([t.replace(microsecond=7000) for t in times], pyarrow.timestamp("ms", tz="UTC")),
        "stamp_ns": column([pandas.Timestamp(t) + pandas.Timedelta(i % 2, "ns") for i, t in enumerate(times)],
                           pyarrow.timestamp("ns")),
        "decimal": column(decimals, pyarrow.decimal128(30, 9)),
        "small_decimal": column([decimal.Decimal(i - 6).scaleb(-2) for i in range(count)], pyarrow.decimal128(5, 2)),
        "wide_decimal": column([d * 10 ** 40 for d in decimals], pyarrow.decimal256(70, 9)),
        "map": column([[(f"k{k}", k if k else None) for k in range(i % 3)] for i in range(count)],
                      pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        "lists": column([[[k, None] if k % 2 else [] for k in range(i % 4)] for i in range(count)],
                        pyarrow.list_(pyarrow.list_(pyarrow.int32()))),
        "fixed_list": column([[i, i + 1] for i in range(count)], pyarrow.list_(pyarrow.int64(), 2)),
        "structs": column([[{"a": {"b": [i]}, "c": None}, None][:i % 3] for i in range(count)], pyarrow.list_(
            pyarrow.struct([("a", pyarrow.struct([("b", pyarrow.list_(pyarrow.int64()))])), ("c", pyarrow.string())]))),
        "nothing": pyarrow.nulls(count),
    })


def write_files(folder):
    rl = pyarrow.Table.from_pylist(rl_rows())
    typed = typed_table()
    write = pyarrow.parquet.write_table

    def path(name):
        return os.path.join(folder, name + ".parquet")

    for codec in ("none", "snappy", "gzip", "brotli", "zstd", "lz4"):
        write(rl, path(f"rl_{codec}"), compression=codec)
    write(rl, path("rl_groups"), row_group_size=3)  # 14 row groups
    write(rl, path("rl_v2_plain"), data_page_version="2.0", use_dictionary=False, data_page_size=256)
    write(rl, path("rl_pages"), data_page_size=64, write_batch_size=3, dictionary_pagesize_limit=128)
    write(rl, path("rl_checksums"), write_page_checksum=True, compression="zstd")
    write(typed, path("typed"))
    write(typed, path("typed_v2"), data_page_version="2.0", compression="zstd")
    write(typed, path("typed_plain"), use_dictionary=False, version="2.6")
    write(typed.drop_columns(["stamp_ns"]), path("typed_1_0"), version="1.0")
    write(typed.select(["stamp_us"]), path("int96"), use_deprecated_int96_timestamps=True)
    write(typed.select(["int8", "int64", "uint32"]), path("delta_integers"), use_dictionary=False,
          column_encoding="DELTA_BINARY_PACKED")
    write(typed.select(["text", "large_text"]), path("delta_length"), use_dictionary=False,
          column_encoding="DELTA_LENGTH_BYTE_ARRAY")
    write(typed.select(["text", "large_text", "wide_decimal"]), path("delta_bytes"), use_dictionary=False,
          column_encoding="DELTA_BYTE_ARRAY")
    write(typed.select(["float", "double", "int64", "half"]), path("split"), use_dictionary=False,
          column_encoding="BYTE_STREAM_SPLIT")
    write(typed.select(["lists", "structs"]), path("old_lists"), use_compliant_nested_type=False)
    write(pyarrow.table({"text": ["ab" * (3 << 19), "short", "cd" * (3 << 19)]}), path("long_text"),
          compression="zstd")
    write(pyarrow.table({"x": [{"ratio": 1.5}, {"ratio": float("nan")}]}), path("nan"))
    write(pyarrow.table({"x": pyarrow.array([1, 2 ** 64 - 1], pyarrow.uint64())}), path("big"))
    write(pyarrow.table({"x": [{"list": [1.0, float("inf")]}]}), path("infinity"))
    write(pyarrow.table({"x": [{"raw": [None, b"ab"]}]}), path("bytes"))
    write(pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["x", "x"]), path("twins"))
    write(pyarrow.table({"x": ["a" * (17 << 20)]}), path("long_row"), compression="zstd", write_statistics=False)
    write(rl, path("rl_damaged"), write_page_checksum=True, compression="none")
    with open(path("rl_damaged"), "r+b") as file:
        at = file.read().index(b"math_dapo")  # in a dictionary
        file.seek(at)
        file.write(b"?")
    write(rl.slice(0, 0), path("empty"))
    pandas.DataFrame(rl_rows()).to_parquet(path("pandas_rl"))
    pandas.DataFrame(sft_rows(), index=[f"i{i}" for i in range(NUM_ROWS)]).to_parquet(path("pandas_sft"))
    datasets.Dataset.from_list(rl_rows()).to_parquet(path("datasets_rl"))
    datasets.Dataset.from_list(sft_rows()).to_parquet(path("datasets_sft"))


# Files whose rows are those of another file, and files that the test refuses or describes itself.
SAME_ROWS = {"rl_": "rl_none", "typed_v2": "typed", "typed_plain": "typed"}
WITHOUT_LINES = ("long_text", "nan", "big", "infinity", "bytes", "twins", "long_row", "rl_damaged")


def main(folder):
    os.makedirs(folder, exist_ok=True)
    for old in os.listdir(folder):
        os.remove(os.path.join(folder, old))
    write_files(folder)
    for name in sorted(name[:-len(".parquet")] for name in os.listdir(folder)):
        same = [other for prefix, other in SAME_ROWS.items() if name.startswith(prefix) and name != other]
        if not same and name not in WITHOUT_LINES:
            path = os.path.join(folder, name)
            converter.convert_files([path + ".parquet"], path + ".jsonl")


if __name__ == "__main__":
    main(sys.argv[1])
