"""Goal: the items of a dataset class in verl's form become rows, and what is wrong with a class is said.

Usage: test_dataset_class.py SCRIPT_FOLDER
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(sys.argv.pop(1), "rankd_dataset.py")

CLASSES = """
import torch_like

class Rows:
    def __init__(self, data_files, tokenizer, config, processor=None, max_samples=-1):
        assert tokenizer is None and processor is None and max_samples == -1
        assert config.max_prompt_length == 9 and config.get("missing", 5) == 5 and config.return_raw_chat
        print("to standard error")
        self.rows = [line.strip() for path in data_files for line in open(path)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"raw_prompt": [{"role": "user", "content": self.rows[i]}], "input_ids": [1, 2], "index": i,
                "mask": torch_like.Tensor(), "reward_model": {"ground_truth": i, "style": "model"}}


class Texts(Rows):
    def __init__(self, data_files):
        self.rows = data_files

    def __getitem__(self, i):
        return {"question": "2 + 2"}


class Images(Texts):
    def __getitem__(self, i):
        return {"raw_prompt": [], "multi_modal_data": {"image": [1]}}


class Array:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __bool__(self):
        raise ValueError("the truth value of an array is ambiguous")


class Arrays(Texts):
    def __getitem__(self, i):
        return {"raw_prompt": [], "multi_modal_inputs": Array(2)}


class Nothing(Texts):
    def __getitem__(self, i):
        return {"other": 1}
"""


class DatasetClassTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path, self.data = os.path.join(self.folder, "classes.py"), os.path.join(self.folder, "data.txt")
        self.out = os.path.join(self.folder, "rows.jsonl")
        for path, text in ((self.path, CLASSES), (self.data, "a\nb\n"),
                           (os.path.join(self.folder, "torch_like.py"), "class Tensor: pass\n"
                            "Tensor.__module__ = 'torch'\n")):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def run_class(self, name, **config):
        request = {"files": [self.data], "config": {"max_prompt_length": 9, **config}}
        return subprocess.run([sys.executable, SCRIPT, "--path", self.path, "--name", name, "--out", self.out],
                              input=json.dumps(request), capture_output=True, text=True, check=False)

    def test_items_become_rows(self):
        done = self.run_class("Rows")
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertIn("to standard error", done.stderr)
        with open(self.out, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        self.assertEqual(rows, [{"index": i, "reward_model": {"ground_truth": i, "style": "model"},
                                 "prompt": [{"role": "user", "content": text}]} for i, text in enumerate("ab")])

    def test_a_class_takes_the_arguments_that_it_names(self):
        self.assertEqual(self.run_class("Texts", prompt_key="question").returncode, 0)
        with open(self.out, encoding="utf-8") as file:
            self.assertEqual(json.load(file), {"question": "2 + 2"})

    def test_failures_say_why(self):
        for name, message in (("Absent", "has no class Absent; it has Array, Arrays, Images, Nothing, Rows, Texts"),
                              ("Images", "item 0.multi_modal_data: rankd's prompts are text"),
                              ("Arrays", "item 0.multi_modal_inputs: rankd's prompts are text"),
                              ("Nothing", "item 0: has neither raw_prompt nor prompt; it has other")):
            with self.subTest(name):
                done = self.run_class(name)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(message, done.stderr)
                self.assertEqual("Traceback" in done.stderr, name == "Absent")


if __name__ == "__main__":
    unittest.main()
