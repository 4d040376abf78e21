#!/usr/bin/env python3
"""Makes the fixtures of value and score heads: tiny models of token and sequence classification, and what they compute.

    python make_tiny_heads.py OUTPUT_DIRECTORY

As make_tiny_models.py: transformers' eager model in fp64 with the fp32 weights of the file.

golden.safetensors: tokens, cu_seqlens (I32), values [T] (token classification) or scores [sequences] (sequence
classification: the last label at the last token), targets, loss = mean (value - target)^2 / 2, and grad.NAME (F64)."""
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import safetensors
import torch
import transformers
from make_tiny_models import (FAMILIES, LENGTHS, LLAMA, QWEN2, SEED, ExactRotary, attention_f64, inverse_frequencies,
                              norm_f64)
from safetensors.torch import save_file
from transformers import LlamaForSequenceClassification, Qwen2ForTokenClassification

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "vocab_size": 67}
VARIANTS = {
    "qwen2_value": (Qwen2ForTokenClassification, QWEN2 | SMALL | {
        "architectures": ["Qwen2ForTokenClassification"], "tie_word_embeddings": True, "torch_dtype": "float32",
        "use_sliding_window": False, "sliding_window": None, "classifier_dropout": 0.0,
        "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}),
    "llama_score": (LlamaForSequenceClassification, LLAMA | SMALL | {
        "architectures": ["LlamaForSequenceClassification"], "tie_word_embeddings": False, "torch_dtype": "float32",
        "eos_token_id": 2, "pad_token_id": 0, "rope_theta": 10000.0,
        "id2label": {"0": "bad", "1": "fair", "2": "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}),
}


def make_model(cls, config):
    kwargs = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    model = cls(FAMILIES[config["model_type"]].config(**kwargs, attn_implementation="eager")).float().eval()
    rng = np.random.default_rng(SEED)
    with torch.no_grad():
        for name, p in model.named_parameters():
            values = rng.standard_normal(tuple(p.shape))
            values = 1 + 0.1 * values if name.endswith("norm.weight") else 0.15 * values
            p.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def forward(model, sequences):
    outputs = []
    for seq in sequences:
        logits = model(input_ids=torch.tensor([seq]), position_ids=torch.arange(len(seq))[None]).logits[0]
        outputs.append(logits[:, 0] if logits.dim() == 2 else logits[-1:])
    return torch.cat(outputs)


def make(out, cls, config):
    family = FAMILIES[config["model_type"]]
    family.patch(*family.stock)
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    model = make_model(cls, config)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({n: p.detach().clone().contiguous() for n, p in model.named_parameters()}, out / "model.safetensors",
              metadata={"format": "pt"})

    model = model.double()
    rng = np.random.default_rng(SEED + 1)
    sequences = [rng.integers(3, config["vocab_size"], n).tolist() for n in LENGTHS]  # without padding ids
    with torch.no_grad():
        stock = forward(model, sequences)
        model.model.rotary_emb = ExactRotary(
            inverse_frequencies(config, config["hidden_size"] // config["num_attention_heads"]))
    family.patch(norm_f64, attention_f64)
    values = forward(model, sequences)
    difference = float(torch.max(torch.abs(stock - values)))
    assert 0 < difference < 1e-5, f"replacements change values by {difference}"
    targets = torch.arange(len(values), dtype=torch.float64) / 8
    loss = ((values - targets) ** 2).mean() / 2
    loss.backward()
    tensors = {
        "tokens": torch.tensor(sum(sequences, []), dtype=torch.int32),
        "cu_seqlens": torch.tensor(np.cumsum([0] + LENGTHS), dtype=torch.int32),
        "values": values, "targets": targets, "loss": loss.reshape(1),
    }
    tensors |= {"grad." + n: p.grad for n, p in model.named_parameters()}
    save_file({n: t.detach().contiguous() for n, t in tensors.items()}, out / "golden.safetensors")

    files = ["config.json", "model.safetensors", "golden.safetensors"]
    manifest = {
        "script": "gen/make_tiny_heads.py", "seed": SEED,
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
                     "safetensors": safetensors.__version__, "numpy": np.__version__},
        "sha256": {f: hashlib.sha256((out / f).read_bytes()).hexdigest() for f in files},
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    print(out.name, {f: (out / f).stat().st_size for f in files}, "loss", float(loss))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    for variant, (model_class, variant_config) in VARIANTS.items():
        make(Path(sys.argv[1]) / variant, model_class, variant_config)
