#!/usr/bin/env python3
"""Lists the keys of verl's PPO trainers with their default, one a line: KEY<tab>JSON.

usage: verl_keys.py VERL_CHECKOUT... > tests/golden/verl/keys.tsv

Reads verl/trainer/config/_generated_ppo_{megatron_,}trainer.yaml of every checkout. The committed list is of
verl 1dda039b9c (2026-08-22) and b178a3cd (2026-01-29), read with PyYAML 6.0.3. A default that refers to other
keys is written as "~"; where checkouts differ, each default has a line.
"""
import json
import subprocess
import sys

import yaml


def leaves(tree, path=""):
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else key)
    else:
        yield path, tree


def main():
    rows = set()
    for checkout in sys.argv[1:]:
        for name in ("megatron_", ""):
            path = f"verl/trainer/config/_generated_ppo_{name}trainer.yaml"
            text = subprocess.check_output(["git", "-C", checkout, "show", f"HEAD:{path}"], text=True)
            for key, value in leaves(yaml.safe_load(text)):
                if "_target_" in key or key.startswith("hydra."):
                    continue
                refers = "${" in json.dumps(value) or value == "???"
                rows.add(f"{key}\t{'~' if refers else json.dumps(value)}")
    print("\n".join(sorted(rows)))


main()
