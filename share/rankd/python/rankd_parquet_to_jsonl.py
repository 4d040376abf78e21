#!/usr/bin/env python3
"""Converts Parquet files with verl's rows to JSON Lines. rankctl reads Parquet itself: this is for looking at the
rows, for editing them, and for files in a form that rankctl refuses.

Usage: rankd_parquet_to_jsonl.py [--keep-nulls] IN.parquet [IN.parquet ...] OUT.jsonl

Reads with pyarrow, or with pandas when pyarrow is missing. All columns are kept with their names and in their order;
so are the rows. Members of structs that are null are left out, because Arrow gives every row the members of all rows
(--keep-nulls keeps them). Values that JSON or rankd cannot represent are an error that names row and column, and no
output file remains: bytes, infinity, images, videos and audios. An existing output is not replaced.
"""
import argparse
import datetime
import decimal
import json
import math
import os
import sys

MEDIA = ("images", "videos", "audios")


class ConversionError(ValueError):
    """A value that cannot be converted; the message names its position."""


def fail(where, what):
    raise ConversionError(f"{where}: {what}")


def convert_text(value, where):
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        fail(where, "text with a lone surrogate is not valid UTF-8")
    return value


def convert_number(value, where):
    if isinstance(value, float) and math.isinf(value):
        fail(where, f"{value} has no JSON form")
    return value  # NaN and integers beyond 64 bits are written as they are: rankctl reads them with a warning


def convert_struct(value, where, keep_nulls):
    out = {}
    for key, member in value.items():
        if not isinstance(key, str):
            fail(where, f"a key of type {type(key).__name__}, expected text")
        converted = convert_value(member, f"{where}.{key}", keep_nulls)
        if converted is not None or keep_nulls:
            out[convert_text(key, where)] = converted
    return out


def plain(value):
    """A numpy or pandas value as one of Python's own types."""
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # numpy arrays and scalars
        return value.tolist()
    if hasattr(value, "as_py"):  # pyarrow scalars
        return value.as_py()
    return value


def convert_value(value, where, keep_nulls=False):
    """The value as JSON has it; ConversionError names `where` when it has no JSON form."""
    value = plain(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return convert_text(value, where)
    if isinstance(value, (int, float)):
        return convert_number(value, where)
    if isinstance(value, dict):
        return convert_struct(value, where, keep_nulls)
    if isinstance(value, (list, tuple)):
        return [convert_value(item, f"{where}[{i}]", keep_nulls) for i, item in enumerate(value)]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        fail(where, "bytes have no JSON form")
    return fail(where, f"a value of type {type(value).__name__} has no JSON form")


def check_messages(messages, where):
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            fail(f"{where}[{i}]", 'expected {"role": ..., "content": ...}')
        content = message.get("content")
        for k, part in enumerate(content if isinstance(content, list) else []):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                fail(f"{where}[{i}].content[{k}]", f"a part of type {kind!r}; rankd's prompts are text")


def check_row(row, where):
    """What rankd would refuse later, or what would mean something else there."""
    for name in MEDIA:
        if row.get(name):
            fail(f"{where}.{name}", "rankd's prompts are text")
    if isinstance(row.get("prompt"), list):
        check_messages(row["prompt"], f"{where}.prompt")


def convert_row(row, where, keep_nulls=False):
    """One row of a file as an object for one line."""
    out = convert_struct(row, where, keep_nulls)
    check_row(out, where)
    return out


def row_to_line(row, where, keep_nulls=False):
    return json.dumps(convert_row(row, where, keep_nulls), ensure_ascii=False) + "\n"


def check_columns(names, path):
    for name in names:
        if list(names).count(name) > 1:
            fail(path, f"two columns have the name {name!r}; rename one of them")


def read_rows(path):
    """The rows of a Parquet file as dicts."""
    try:
        import pyarrow.parquet
    except ImportError:
        pyarrow = None
    if not os.path.isfile(path):
        fail(path, "expected a file")
    if pyarrow is not None:
        file = pyarrow.parquet.ParquetFile(path)
        check_columns(file.schema_arrow.names, path)
        for batch in file.iter_batches():
            yield from batch.to_pylist()
        return
    try:
        import pandas
    except ImportError:
        sys.exit("rankd_parquet_to_jsonl.py: needs pyarrow, or pandas with a Parquet engine: pip install pyarrow")
    frame = pandas.read_parquet(path)
    check_columns(frame.columns, path)
    for values in frame.itertuples(index=False, name=None):
        yield dict(zip(frame.columns, values))


def rows_of(path):
    """read_rows, with the libraries' errors about damaged files as our own."""
    try:
        yield from read_rows(path)
    except (ConversionError, OSError, MemoryError):
        raise
    except Exception as error:  # pyarrow's ArrowInvalid is a ValueError, pandas' engines have others
        fail(path, f"not a Parquet file that can be read: {error}")


def write_lines(paths, out, keep_nulls):
    count = 0
    for path in paths:
        for i, row in enumerate(rows_of(path)):
            out.write(row_to_line(row, f"{path}: row {i}", keep_nulls))
            count += 1
    return count


def publish(partial, out_path):
    """Gives the finished file its name. A link, unlike a renaming, does not replace a file that has appeared meanwhile."""
    try:
        os.link(partial, out_path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(out_path):
            fail(out_path, "exists, and is not replaced")
        os.rename(partial, out_path)


def convert_files(paths, out_path, keep_nulls=False):
    """Writes all rows or nothing; returns their number. Neither the output nor the file in work may exist."""
    partial = out_path + ".partial"
    if os.path.lexists(out_path):
        fail(out_path, "exists, and is not replaced; the last argument is the output")
    if os.path.lexists(partial):
        fail(partial, "exists: a left-over of a conversion that was killed, or one that is running; remove it if none is")
    out = open(partial, "x", encoding="utf-8", newline="\n")
    try:
        with out:
            count = write_lines(paths, out, keep_nulls)
            out.flush()
            os.fsync(out.fileno())
        publish(partial, out_path)
    finally:
        if os.path.lexists(partial):
            os.remove(partial)
    return count


def main(arguments):
    parser = argparse.ArgumentParser(description="Parquet files with verl's rows to JSON Lines for rankd.")
    parser.add_argument("--keep-nulls", action="store_true", help="keep members of structs that are null")
    parser.add_argument("inputs", nargs="+", metavar="IN.parquet")
    parser.add_argument("output", metavar="OUT.jsonl")
    args = parser.parse_args(arguments)
    try:
        count = convert_files(args.inputs, args.output, args.keep_nulls)
    except (ConversionError, OSError) as error:
        sys.exit(f"rankd_parquet_to_jsonl.py: {error}")
    print(f"{args.output}: {count} rows")


if __name__ == "__main__":
    main(sys.argv[1:])
