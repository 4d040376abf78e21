#!/usr/bin/env python3
"""Lists the keys of verl's trainers with their defaults: KEY<tab>JSON<tab>LETTERS.

usage: verl_defaults.py NAME=DIR... > tests/golden/verl/defaults.tsv

DIR is a checkout of verl or its unpacked wheel. The committed list was made with

    verl_defaults.py 2026-01-29=DIR main=DIR 0.9.1=DIR

from verl b178a3cd (2026-01-29), 1dda039b9 (2026-08-22, main) and the wheel verl 0.9.1, read with PyYAML 6.0.4,
OmegaConf 2.4.0 and hydra-core 1.3. A letter stands for one configuration: the first lines tell which. References to
other keys are resolved, so that every configuration is complete.
"""
import json
import os
import string
import sys

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

ENGINES = ("fsdp", "megatron", "veomni", "torchtitan", "automodel")


def leaves(tree, path=""):
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def configurations(directory):
    """The PPO trainer's, which verl keeps composed, and the SFT trainer's, for each engine."""
    config = os.path.join(os.path.abspath(directory), "verl/trainer/config")
    for engine in ENGINES:
        infix = "" if engine == "fsdp" else engine + "_"
        path = os.path.join(config, f"_generated_ppo_{infix}trainer.yaml")
        if os.path.exists(path):
            with open(path) as file:
                yield f"ppo {engine}", OmegaConf.create(yaml.safe_load(file))
    for engine in ENGINES:
        if os.path.exists(os.path.join(config, f"engine/{engine}.yaml")):
            with initialize_config_dir(config, version_base=None):
                overrides = [] if engine == "fsdp" else [f"engine={engine}", f"optim={engine}"]
                yield f"sft {engine}", compose("sft_trainer_engine", overrides)


def main():
    letters = iter(string.ascii_letters)
    rows = {}
    for argument in sys.argv[1:]:
        name, directory = argument.split("=", 1)
        for title, config in configurations(directory):
            letter = next(letters)
            print(f"#\t{letter}\t{name} {title}")
            for key, value in leaves(OmegaConf.to_container(config, resolve=True)):
                if "_target_" not in key and not key.startswith("hydra."):
                    rows.setdefault((key, json.dumps(value)), []).append(letter)
    for (key, value), where in sorted(rows.items()):
        print(f"{key}\t{value}\t{''.join(where)}")


main()
