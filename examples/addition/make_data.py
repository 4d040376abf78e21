#!/usr/bin/env python3
"""Writes train.jsonl and val.jsonl: questions for sums of two numbers below 100; no question is in both files.

    python3 make_data.py

Needs nothing but Python; the files are the same every time."""
import json
import random

INSTRUCTION = "Answer with the number only."
NUM_TRAIN, NUM_VAL = 2048, 256


def write(path, sums):
    with open(path, "w", encoding="utf-8") as file:
        for a, b in sums:
            row = {
                "data_source": "addition",
                "prompt": [{"role": "user", "content": f"What is {a} + {b}? {INSTRUCTION}"}],
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            }
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    pairs = [(a, b) for a in range(100) for b in range(100)]
    random.Random(1).shuffle(pairs)
    write("train.jsonl", pairs[:NUM_TRAIN])
    write("val.jsonl", pairs[NUM_TRAIN : NUM_TRAIN + NUM_VAL])
