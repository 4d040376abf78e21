#!/usr/bin/env python3
"""Makes tests/golden/sft: conversations with the token ids and the loss mask that verl's MultiTurnSFTDataset gives.

    python make_sft.py VERL_DIRECTORY DIRECTORY      (VERL_DIRECTORY has verl/; needs torch and transformers)

The classes are taken out of verl without importing the rest of it. A case has
  "verl": "IDS / MASK" of the class, "mismatch" where its check of the whole conversation fails, or "raises";
  "concatenated": the same with ignore_input_ids_mismatch, when "verl" is "mismatch";
  "offsets": "IDS / MASK" where the text up to each answer is a beginning of the whole text: the loss is on the tokens whose
             characters all belong to answers (return_offsets_mapping); null where it is not, or a token reaches over the end of an
             answer;
  "generation": "IDS / MASK" of apply_chat_template(return_assistant_tokens_mask=True), for the template with generation blocks.
"""
import ast
import enum
import json
import logging
import pathlib
import random
import re
import subprocess
import sys
import typing

import torch
import transformers

SEED = 20261122
NUM_ROWS = 22
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
TEMPLATES = {"chatml": "qwen2", "qwen25_tools": "qwen2", "qwen3_thinking": "qwen2", "llama3": "llama3", "mistral": "mistral",
             "gemma": "gemma", "zephyr": "llama2", "phi": "phi", "deepseek": "deepseek", "generation": "qwen2"}
WORDS = ["apple", "Straße", "naïve", "東京", "мир", "😀", "don't", '"quoted"', "1,000", "line\nbreak", "  two  ", "x", "3 + 4 = 7",
         "<|im_end|>", "</s>", "\n\nlead", "trail \t\n", "The answer is 42."]


def take(path, names):
    """The functions and classes of these names of a file."""
    tree = ast.parse(path.read_text())
    return [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in names]


def load_dataset_class(verl):
    class Logger:
        def warning_once(self, *_):
            pass

    space = {"Any": typing.Any, "Optional": typing.Optional, "torch": torch, "re": re, "F": torch.nn.functional, "logger": Logger(),
             "DatasetPadMode": enum.Enum("DatasetPadMode", {"RIGHT": "right", "NO_PADDING": "no_padding"}, type=str),
             "Dataset": object, "DictConfig": dict, "ListConfig": list, "PreTrainedTokenizer": object, "ProcessorMixin": object}
    nodes = take(verl / "verl/utils/chat_template.py", {"extract_system_prompt_and_generation"})
    nodes += take(verl / "verl/utils/dataset/multiturn_sft_dataset.py", {"MultiTurnSFTDataset"})
    exec(compile(ast.Module(body=nodes, type_ignores=[]), "verl", "exec"), space)
    return space["MultiTurnSFTDataset"], space["extract_system_prompt_and_generation"]


class Tokenizer:
    """A tokenizer with a template and its special tokens; lists of ids unless return_dict is given, as before transformers 5."""

    def __init__(self, path, template):
        self.fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
        self.template = template

    def apply_chat_template(self, messages, tools=None, **kwargs):
        kwargs.setdefault("return_dict", False)
        return self.fast.apply_chat_template(messages, tools=tools, chat_template=self.template, **{**SPECIAL, **kwargs})


class Frame:
    def __init__(self, row):
        self.iloc = [self]
        self.row = row

    def to_dict(self):
        return json.loads(json.dumps(self.row))


def joined(ids, mask):
    return " ".join(map(str, ids)) + " / " + "".join(map(str, mask))


def verl_item(classes, tokenizer, row, ignore):
    dataset_class, extract = classes
    dataset = object.__new__(dataset_class)
    dataset.tokenizer, dataset.processor, dataset.dataframe = tokenizer, None, Frame(row)
    dataset.messages_key, dataset.image_key, dataset.video_key = "messages", "images", "videos"
    dataset.tools = [row.get("tools")]
    dataset.enable_thinking = [row.get("enable_thinking")]
    dataset.apply_chat_template_kwargs, dataset.pad_mode, dataset.max_length = {}, "no_padding", 1 << 20
    dataset.ignore_input_ids_mismatch = ignore
    try:
        dataset.system_prompt, dataset.generation_prompt = extract(tokenizer)
        item = dataset[0]
    except AssertionError:
        return "mismatch"
    except Exception:  # templates may raise any exception
        return "raises"
    return joined(item["input_ids"].tolist(), item["loss_mask"].tolist())


def render(tokenizer, row, count, add_generation_prompt):
    kwargs = {} if row.get("enable_thinking") is None else {"enable_thinking": row["enable_thinking"]}
    return tokenizer.apply_chat_template(row["messages"][:count], tools=row.get("tools"), tokenize=False,
                                         add_generation_prompt=add_generation_prompt, **kwargs)


def by_offsets(tokenizer, row):
    try:
        whole = render(tokenizer, row, len(row["messages"]), False)
        spans = []
        for i, message in enumerate(row["messages"]):
            if message["role"] == "assistant":
                asked, answered = render(tokenizer, row, i, True), render(tokenizer, row, i + 1, False)
                if not (answered.startswith(asked) and whole.startswith(answered)):
                    return None
                spans.append((len(asked), len(answered)))
    except Exception:
        return None
    out = tokenizer.fast(whole, add_special_tokens=False, return_offsets_mapping=True)
    for begin, end in out["offset_mapping"]:
        if any(begin < last < end for _, last in spans):
            return None
    mask = [int(any(begin >= first and end <= last for first, last in spans)) for begin, end in out["offset_mapping"]]
    return joined(out["input_ids"], mask)


def by_generation(tokenizer, row):
    out = tokenizer.apply_chat_template(row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return joined(out["input_ids"], out["assistant_masks"])


def words(rng, low, high):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))


def make_row(rng):
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": words(rng, 1, 3)})
    for _ in range(rng.choice([1, 1, 2, 3])):
        messages.append({"role": "user", "content": words(rng, 1, 4)})
        if rng.random() < 0.15:
            messages.append({"role": "assistant", "content": words(rng, 0, 2),
                             "tool_calls": [{"type": "function", "id": "abc123abc", "function": {"name": "f", "arguments": {"x": 1}}}]})
            messages.append({"role": "tool", "content": "[1, 2]", "tool_call_id": "abc123abc"})
        answer = words(rng, 1, 5)
        if rng.random() < 0.1:
            answer = "<think>\n" + words(rng, 1, 2) + "\n</think>\n\n" + answer
        messages.append({"role": "assistant", "content": answer})
    if rng.random() < 0.1:
        messages.append({"role": "user", "content": words(rng, 1, 2)})
    row = {"messages": messages}
    if rng.random() < 0.15:
        row["tools"] = [{"type": "function", "function": {"name": "f", "description": "d",
                                                          "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]
    if rng.random() < 0.2:
        row["enable_thinking"] = rng.random() < 0.5
    return row


def version_of(verl):
    return (verl / "verl/version/version").read_text().strip()


def main():
    verl, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    classes = load_dataset_class(verl)
    rng = random.Random(SEED)
    rows = [make_row(rng) for _ in range(NUM_ROWS)]
    cases = []
    for name, tokenizer_name in TEMPLATES.items():
        folder = out if name == "generation" else out.parent / "chat" / "templates"
        tokenizer = Tokenizer(out.parent / "tokenizers" / (tokenizer_name + ".json"), (folder / (name + ".jinja")).read_text())
        counts = {"verl": 0, "mismatch": 0, "raises": 0, "offsets": 0}
        for i, row in enumerate(rows):
            case = {"template": name, "row": i}
            if name == "generation":
                case["generation"] = by_generation(tokenizer, row)
            else:
                case["verl"] = verl_item(classes, tokenizer, row, False)
                if case["verl"] == "mismatch":
                    case["concatenated"] = verl_item(classes, tokenizer, row, True)
                case["offsets"] = by_offsets(tokenizer, row)
                counts[case["verl"] if case["verl"] in counts else "verl"] += 1
                counts["offsets"] += case["offsets"] is not None
                if "/" in case["verl"] and case["offsets"] != case["verl"]:
                    print("differ", name, i, case["verl"], case["offsets"], sep="\n  ")
                if case["offsets"] == case["verl"]:
                    del case["offsets"]
            cases.append(case)
        print(name, counts)
    text = ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
    rows_text = ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows)
    manifest = {"script": "tests/golden/gen/make_sft.py", "seed": SEED, "verl": version_of(verl), "torch": torch.__version__,
                "transformers": transformers.__version__, "special_tokens": SPECIAL, "templates": TEMPLATES}
    (out / "cases.json").write_text("{\"manifest\": %s,\n\"rows\": [\n%s\n],\n\"cases\": [\n%s\n]}\n" %
                                    (json.dumps(manifest), rows_text, text))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
