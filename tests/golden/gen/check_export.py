#!/usr/bin/env python3
"""Checks by hand that transformers loads an exported model and computes the same logits as the directory it came from.

    python check_export.py EXPORTED_DIRECTORY ORIGINAL_DIRECTORY"""
import sys

import torch
from transformers import AutoModelForCausalLM


def logits_of(path, tokens):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(input_ids=tokens).logits, model.config.vocab_size


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    tokens = torch.arange(24)[None]
    exported, vocab_size = logits_of(sys.argv[1], tokens % 97)
    original, _ = logits_of(sys.argv[2], tokens % 97)
    difference = float(torch.max(torch.abs(exported - original)))
    print(f"vocab_size {vocab_size}, largest difference of logits {difference:g}")
    sys.exit(0 if difference <= 1e-4 else 1)
