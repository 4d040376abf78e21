#!/usr/bin/env python3
"""Writes the rows of a dataset class of the user's, in the form of verl's RLHFDataset (data.custom_cls), as JSON Lines.

    python3 rankd_dataset.py --path my_data.py --name MyDataset --out ROWS.jsonl < REQUEST

The request is a JSON object: files (list of paths), config (the job's section data), tokenizer (directory). The class
is made once: cls(data_files=, tokenizer=, processor=None, config=, max_samples=-1), with those of the arguments that
it takes; every item is a row: raw_prompt (or the member data.prompt_key names) is its prompt, tensors are left out, all
other members are kept. The tokenizer is transformers' and config is omegaconf's where these are installed; else None
and a dict whose members are attributes too. Output of the class goes to standard error.
"""
import argparse
import inspect
import json
import os
import sys

sys.dont_write_bytecode = True
import rankd_module  # noqa: E402  (beside this file)
import rankd_parquet_to_jsonl as rows  # noqa: E402

MADE_FROM_PROMPT = ("raw_prompt", "raw_prompt_ids", "full_prompts", "input_ids", "attention_mask", "position_ids",
                    "dummy_tensor")
MEDIA = ("multi_modal_data", "multi_modal_inputs")


class Config(dict):
    """A dict with members as attributes, as omegaconf's."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)


def make_config(section):
    try:
        from omegaconf import OmegaConf
        return OmegaConf.create(section)
    except ImportError:
        return json.loads(json.dumps(section), object_hook=Config)


def load_tokenizer(folder):
    try:
        from transformers import AutoTokenizer
    except ImportError:
        print("rankd_dataset.py: transformers is not installed: the class gets no tokenizer", file=sys.stderr)
        return None
    return AutoTokenizer.from_pretrained(folder) if folder else None


def load_class(path, name):
    module = rankd_module.load_module(path, "data.custom_cls.path")
    if not hasattr(module, name):
        classes = sorted(key for key, value in vars(module).items() if inspect.isclass(value))
        raise AttributeError(f"'{path}' has no class {name}; it has {', '.join(classes) or 'none'}")
    return getattr(module, name)


def make_dataset(cls, request):
    arguments = {"data_files": request["files"], "tokenizer": load_tokenizer(request.get("tokenizer")),
                 "processor": None, "config": make_config({**request["config"], "return_raw_chat": True}),
                 "max_samples": -1}
    parameters = inspect.signature(cls).parameters.values()
    if not any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        names = {parameter.name for parameter in parameters}
        arguments = {name: value for name, value in arguments.items() if name in names}
    return cls(**arguments)


def is_tensor(value):
    return type(value).__module__.split(".")[0] == "torch"


def make_row(item, where, prompt_key):
    if not isinstance(item, dict):
        rows.fail(where, f"expected a dict, got {type(item).__name__}")
    for name in MEDIA:
        value = item.get(name)
        if value is not None and len(value) > 0:
            rows.fail(f"{where}.{name}", "rankd's prompts are text")
    prompt = item.get("raw_prompt", item.get(prompt_key))
    if prompt is None:
        rows.fail(where, f"has neither raw_prompt nor {prompt_key}; it has {', '.join(map(str, item))}")
    kept = {name: value for name, value in item.items() if name not in MADE_FROM_PROMPT and not is_tensor(value)}
    return rows.row_to_line({**kept, prompt_key: prompt}, where)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--path", "--name", "--out"):
        parser.add_argument(name, required=True)
    args = parser.parse_args(arguments)
    request = json.load(sys.stdin)
    os.dup2(2, 1)
    prompt_key = request["config"].get("prompt_key") or "prompt"
    dataset = make_dataset(load_class(args.path, args.name), request)
    try:
        with open(args.out, "w", encoding="utf-8", newline="\n") as out:
            for i in range(len(dataset)):
                out.write(make_row(dataset[i], f"item {i}", prompt_key))
    except rows.ConversionError as error:
        sys.exit(f"rankd_dataset.py: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
