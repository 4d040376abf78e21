#!/usr/bin/env python3
"""Turns rows of the original GSM8K ({"question": ..., "answer": "... #### 72"}) into prompts for rankctl.

    python3 make_data.py train.jsonl train > train_prompts.jsonl
    python3 make_data.py test.jsonl test 40 > val.jsonl      # the first 40 rows

Needs nothing but Python. The original files: https://github.com/openai/grade-school-math"""
import json
import sys

INSTRUCTION = 'Reason step by step. End with the result as a plain number behind "#### ".'


def convert(row, split, index):
    reasoning, _, result = row["answer"].rpartition("#### ")
    if not reasoning:
        raise ValueError(f'row {index}: no "#### " in the answer')
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": row["question"].strip() + "\n" + INSTRUCTION}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": result.strip().replace(",", "")},
        "extra_info": {"split": split, "index": index},
    }


def main(path, split, count=None):
    with open(path, encoding="utf-8") as file:
        for index, line in enumerate(file):
            if count is not None and index == int(count):
                break
            print(json.dumps(convert(json.loads(line), split, index), ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
