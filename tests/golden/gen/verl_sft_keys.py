#!/usr/bin/env python3
"""Lists the keys of verl's SFT trainer with their default, one a line: FORM<tab>KEY<tab>JSON, where FORM is that of
engine and optimizer, "*" for keys with one default in all forms.

usage: verl_sft_keys.py VERL_DIRECTORY... > tests/golden/verl/sft_keys.tsv

Reads verl/trainer/config/sft_trainer_engine.yaml with its model, profiler, and every form of its engine and
optimizer. The committed list is of verl 1dda039b9c (2026-08-22) and of the wheel of 0.9.1, read with PyYAML
6.0. A default that refers to other keys is written as "~"; where directories differ, each default has a line.
"""
import json
import pathlib
import re
import sys

import yaml

FORMS = ("fsdp", "megatron", "veomni", "torchtitan", "automodel")


def leaves(tree, path=""):
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else key)
    else:
        yield path, tree


def number(value):
    """OmegaConf reads 1e-3 as a number, YAML 1.1 does not."""
    is_number = isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value)
    return float(value) if is_number else value


def trainer(directory, form):
    config = pathlib.Path(directory) / "verl/trainer/config"
    tree = yaml.safe_load((config / "sft_trainer_engine.yaml").read_text())
    del tree["defaults"]
    for section, name in (("model", "hf_model"), ("engine", form), ("optim", form), ("profiler", "profiler")):
        tree[section] = yaml.safe_load((config / section / f"{name}.yaml").read_text())
    return tree


def main():
    forms = {}
    for directory in sys.argv[1:]:
        for form in FORMS:
            for key, value in leaves(trainer(directory, form)):
                if "_target_" in key or ".defaults" in key or key.startswith("hydra."):
                    continue
                refers = "${" in json.dumps(value) or value == "???"
                row = f"{key}\t{'~' if refers else json.dumps(number(value))}"
                forms.setdefault(row, []).append(form)
    for row, has in sorted(forms.items()):
        for form in ["*"] if set(has) == set(FORMS) else sorted(set(has)):
            print(f"{form}\t{row}")


main()
