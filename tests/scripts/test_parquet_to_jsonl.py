"""Goal: rows of Parquet files become lines that keep every value, and what has no JSON form is refused by name.
Method: the conversion of rows with values like those that pyarrow and pandas give, the command over a reader that is
made here, and over real files where pyarrow is installed.

Usage: test_parquet_to_jsonl.py SCRIPT_FOLDER
"""
import contextlib
import datetime
import decimal
import io
import json
import math
import os
import sys
import tempfile
import types
import unittest

sys.path.insert(0, sys.argv.pop(1))
sys.dont_write_bytecode = True
import rankd_parquet_to_jsonl as converter  # noqa: E402

ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "2 + 2 = ? é\u2028😀", "name": None}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 0, "split": "train", "answer": None, "deep": {"a": None, "b": [1, None, {"c": None}]}},
    "agent_name": None,
}


class Scalar:  # as numpy's
    def __init__(self, value, dtype):
        self.value, self.dtype = value, dtype

    def tolist(self):
        return self.value


class NAType:  # as pandas'
    pass


class ConversionTest(unittest.TestCase):
    def test_row_keeps_fields_and_drops_nulls(self):
        row = json.loads(converter.row_to_line(ROW, "row 0"))
        self.assertEqual(list(row), ["data_source", "prompt", "ability", "reward_model", "extra_info"])
        self.assertEqual(row["prompt"], [{"role": "user", "content": "2 + 2 = ? é\u2028😀"}])
        self.assertEqual(row["extra_info"], {"index": 0, "split": "train", "deep": {"b": [1, None, {}]}})

    def test_row_keeps_nulls_when_asked(self):
        self.assertEqual(json.loads(converter.row_to_line(ROW, "row 0", keep_nulls=True)), ROW)

    def test_line_is_one_line_of_utf8(self):
        line = converter.row_to_line({"prompt": "a\nb\r\u0085é"}, "row 0")
        self.assertEqual(line.count("\n"), 1)
        self.assertIn("é", line)

    def test_values_of_numpy_and_pandas(self):
        array = Scalar([1, [2.5, "x"]], "object")
        row = {"i": Scalar(7, "int64"), "a": array, "n": NAType(), "t": (1, 2), "b": Scalar(True, "bool")}
        self.assertEqual(converter.convert_row(row, "row"), {"i": 7, "a": [1, [2.5, "x"]], "t": [1, 2], "b": True})

    def test_dates_and_decimals_become_text(self):
        row = {"d": datetime.date(2026, 1, 2), "t": datetime.datetime(2026, 1, 2, 3, 4, 5), "m": decimal.Decimal("1.50")}
        self.assertEqual(converter.convert_row(row, "row"), {"d": "2026-01-02", "t": "2026-01-02T03:04:05", "m": "1.50"})

    def test_integers_are_exact(self):
        for value in (2 ** 53 + 1, -2 ** 63, 2 ** 63 - 1):
            self.assertEqual(json.loads(converter.row_to_line({"i": value}, "row"))["i"], value)

    def test_refused_values_are_named(self):
        part = {"type": "image_url", "image_url": "x"}
        cases = [
            ({"extra_info": {"raw": b"ab"}}, "row.extra_info.raw: bytes"),
            ({"prompt": [{"role": "user", "content": "x", "pixels": bytearray(2)}]}, "row.prompt[0].pixels: bytes"),
            ({"x": [1.0, math.inf]}, "row.x[1]: inf"),
            ({"x": "\ud800"}, "row.x: text with a lone surrogate"),
            ({"x": {1: 2}}, "row.x: a key of type int"),
            ({"x": object()}, "row.x: a value of type object"),
            ({"images": ["a.png"]}, "row.images"),
            ({"prompt": [{"role": "user", "content": [part]}]}, "row.prompt[0].content[0]: a part of type 'image_url'"),
            ({"prompt": [{"content": "x"}]}, "row.prompt[0]: expected"),
        ]
        for row, message in cases:
            with self.subTest(message), self.assertRaises(converter.ConversionError) as caught:
                converter.convert_row(row, "row")
            self.assertIn(message, str(caught.exception))

    def test_what_rankd_takes_is_kept(self):
        row = {"reward_model": {"style": "model"}, "text": "a\0b", "big": 2 ** 64}
        self.assertEqual(json.loads(converter.row_to_line(row, "row")), row)
        self.assertEqual(converter.row_to_line({"x": math.nan}, "row"), '{"x": NaN}\n')


class CommandTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = os.path.join(self.folder, "out.jsonl")
        self.source = os.path.join(self.folder, "in.parquet")
        with open(self.source, "wb") as file:
            file.write(b"PAR1")

    def run_over(self, rows, *arguments, names=None):
        """The command over a pyarrow that gives `rows` for every file, two a batch."""
        batches = (types.SimpleNamespace(to_pylist=lambda i=i: rows[i:i + 2]) for i in range(0, len(rows), 2))
        schema = types.SimpleNamespace(names=names or list(rows[0]))
        parquet = types.SimpleNamespace(
            ParquetFile=lambda path: types.SimpleNamespace(schema_arrow=schema, iter_batches=lambda: batches))
        fake = types.ModuleType("pyarrow")
        fake.parquet = parquet
        saved = {name: sys.modules.get(name) for name in ("pyarrow", "pyarrow.parquet")}
        sys.modules.update({"pyarrow": fake, "pyarrow.parquet": parquet})
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                converter.main([*arguments, self.source, self.out])
            return printed.getvalue()
        finally:
            for name, module in saved.items():
                sys.modules.pop(name)
                if module:
                    sys.modules[name] = module

    def test_command_writes_every_row_in_order(self):
        printed = self.run_over([{"prompt": "p", "extra_info": {"index": i}} for i in range(5)])
        with open(self.out, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        self.assertEqual([row["extra_info"]["index"] for row in rows], list(range(5)))
        self.assertIn("5 rows", printed)

    def test_command_that_fails_leaves_no_output(self):
        with self.assertRaises(SystemExit) as caught:
            self.run_over([{"prompt": "p"}, {"prompt": "p", "x": b"1"}])
        self.assertIn("in.parquet: row 1.x: bytes", str(caught.exception.code))
        self.assertEqual(os.listdir(self.folder), ["in.parquet"])

    def test_command_replaces_no_file(self):
        for self.out in (self.source, os.path.join(self.folder, "other.parquet")):
            with open(self.out, "wb") as file:
                file.write(b"PAR1")
            with self.assertRaises(SystemExit) as caught:
                self.run_over([{"prompt": "p"}])
            self.assertIn("exists, and is not replaced", str(caught.exception.code))
            with open(self.out, "rb") as file:
                self.assertEqual(file.read(), b"PAR1")

    def test_command_renames_where_there_are_no_links(self):
        link, os.link = os.link, lambda *paths: (_ for _ in ()).throw(PermissionError("no hard links"))
        try:
            printed = self.run_over([{"prompt": "p", "big": 10 ** 400}])
        finally:
            os.link = link
        self.assertIn("1 rows", printed)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(["in.parquet", os.path.basename(self.out)]))

    def test_command_leaves_a_file_of_the_partial_name(self):
        with open(self.out + ".partial", "w", encoding="utf-8") as file:
            file.write("mine")
        with self.assertRaises(SystemExit) as caught:
            self.run_over([{"prompt": "p"}])
        self.assertIn(".partial: exists: a left-over", str(caught.exception.code))
        with open(self.out + ".partial", encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")

    def test_command_refuses_two_columns_of_one_name(self):
        with self.assertRaises(SystemExit) as caught:
            self.run_over([{"prompt": "p"}], names=["prompt", "x", "x"])
        self.assertIn("two columns have the name 'x'", str(caught.exception.code))

    def test_command_names_a_damaged_file(self):
        class Damaged:
            def __getitem__(self, part):
                raise ValueError("Parquet magic bytes not found")

            def __len__(self):
                return 2

        with self.assertRaises(SystemExit) as caught:
            self.run_over(Damaged(), names=["x"])
        self.assertIn("not a Parquet file that can be read: Parquet magic", str(caught.exception.code))

    def test_command_over_real_files(self):
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            self.skipTest("pyarrow is not installed")
        path = os.path.join(self.folder, "real.parquet")
        first = {**ROW, "extra_info": {"index": 0, "deep": {"a": None, "b": [{"c": 1}, {"c": None}]}}}
        second = {**ROW, "extra_info": {"index": 1, "answer": "4"}}
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([first, second]), path)
        with contextlib.redirect_stdout(io.StringIO()):
            converter.main([path, self.out])
        with open(self.out, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        self.assertEqual(rows[0], converter.convert_row(first, "row"))
        self.assertEqual(rows[1]["extra_info"], {"index": 1, "answer": "4"})


if __name__ == "__main__":
    unittest.main()
