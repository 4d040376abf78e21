#!/usr/bin/env python3
"""Makes tests/golden/rope.json: the frequencies that transformers takes from keys of config.json.

Usage: make_rope.py OUT_FILE      (needs transformers and torch; versions go into the file)

Each row has keys that are added to BASE, the inverse frequencies, and the factor of cos and sin.
"""
import json
import sys

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

BASE = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16,
        "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 32, "max_position_embeddings": 1024}
YARN = {"rope_type": "yarn", "factor": 8.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
INNER = {"original_max_position_embeddings": 128}

ROWS = [
    {"head_dim": 8, "rope_theta": 50000.0, "rope_scaling": {
        "type": "yarn", "factor": 32.0, "original_max_position_embeddings": 32, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0}},
    {"rope_theta": 50000.0, "rope_scaling": YARN | INNER | {"beta_fast": 1.0, "beta_slow": 1.0}},
    {"rope_scaling": YARN | INNER | {"beta_fast": 2.5, "beta_slow": 2.5}},
    {"rope_scaling": YARN | INNER | {"beta_fast": 2.5, "beta_slow": 2.5, "truncate": False}},
    {"rope_scaling": YARN | INNER | {"beta_fast": 0, "beta_slow": 0}},
    {"original_max_position_embeddings": 256, "rope_scaling": YARN | INNER},
    {"original_max_position_embeddings": 256, "rope_scaling": YARN},
    {"original_max_position_embeddings": 256, "rope_scaling": YARN | {"factor": None}},
    {"original_max_position_embeddings": 256, "rope_parameters": YARN | INNER | {"rope_theta": 70000.0}},
    {"original_max_position_embeddings": 256, "rope_scaling": LLAMA3 | INNER},
    {"original_max_position_embeddings": 256, "rope_scaling": LLAMA3},
    {"rope_scaling": LLAMA3 | INNER},
    {"rope_scaling": LLAMA3},
    {"original_max_position_embeddings": 256, "rope_theta": 30000.0},
    {"rope_theta": 70000.0, "rope_scaling": YARN | INNER, "rope_parameters": {"rope_type": "default", "rope_theta": 70000.0}},
    {"rope_scaling": YARN | INNER | {"rope_theta": 90000.0}, "rope_parameters": {"rope_type": "default", "rope_theta": 70000.0}},
    {"rope_scaling": {}, "rope_parameters": LLAMA3 | INNER | {"rope_theta": 70000.0}},
    {"rope_scaling": None, "rope_parameters": YARN | INNER | {"rope_theta": 70000.0}},
]


def main():
    rows = []
    for keys in ROWS:
        config = transformers.LlamaConfig.from_dict(json.loads(json.dumps(BASE | keys)))
        rope = LlamaRotaryEmbedding(config)
        rows.append({"keys": keys, "inv_freq": [float(x) for x in rope.inv_freq.to(torch.float64)],
                     "attention_factor": float(rope.attention_scaling)})
    with open(sys.argv[1], "w") as file:
        file.write("{\"script\": \"tests/golden/gen/make_rope.py\", \"transformers\": \"%s\", \"torch\": \"%s\",\n\"base\": %s,\n"
                   "\"rows\": [\n" % (transformers.__version__, torch.__version__, json.dumps(BASE)))
        file.write(",\n".join(json.dumps(row) for row in rows) + "\n]}\n")


if __name__ == "__main__":
    main()
