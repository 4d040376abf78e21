#!/usr/bin/env python3
"""Makes tests/golden/reward_model: a tiny reward model, and the tokens and scores that it has for prompts with responses.

    python make_reward_model.py DIRECTORY      (needs torch and transformers)

The tokenizer is tests/golden/tokenizers/llama3.json, which adds a token in front of a text; the template writes the same one. A case
has messages, or a prompt that is text, a response, and
  ids: apply_chat_template(messages + the assistant's response), or tokenizer(prompt + response);
  score: the logit of LlamaForSequenceClassification in fp64 at the last of these tokens.
verl gives the rendered text without the token in front to an engine that adds it again; that these ids are the same is checked."""
import hashlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

SEED = 20261122
HERE = Path(__file__).resolve().parent
TOKENIZER = HERE.parent / "tokenizers" / "llama3.json"
BOS = "<|endoftext|>"
TEMPLATE = ("{{ bos_token }}{% for turn in messages %}{{ '<|im_start|>' + turn.role + '\\n' + turn.content | trim + '<|im_end|>\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
CONFIG = {"architectures": ["LlamaForSequenceClassification"], "model_type": "llama", "vocab_size": 421, "hidden_size": 16,
          "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
          "max_position_embeddings": 512, "rms_norm_eps": 2**-17, "rope_theta": 10000.0, "hidden_act": "silu",
          "attention_bias": False, "mlp_bias": False, "initializer_range": 0.02, "tie_word_embeddings": False,
          "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "float32",
          "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
WORDS = ["apple", "Straße", "naïve", "東京", "мир", "😀", "don't", '"quoted"', "1,000", "line\nbreak", "  two  ", "x", "3 + 4 = 7",
         "\n\nlead", "trail \t\n", "The answer is 42."]


def make_model():
    kwargs = {k: v for k, v in CONFIG.items() if k not in ("architectures", "model_type", "torch_dtype")}
    config = transformers.LlamaConfig(**kwargs, attn_implementation="eager")
    model = transformers.LlamaForSequenceClassification(config).float().eval()
    rng = np.random.default_rng(SEED)
    with torch.no_grad():
        for name, p in model.named_parameters():
            values = rng.standard_normal(tuple(p.shape))
            values = 1 + 0.1 * values if name.endswith("norm.weight") else 0.3 * values
            p.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def make_tokenizer():
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), bos_token=BOS, eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def text_of(rng, most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, most)))


def make_prompts(rng):
    for i in range(12):
        turns = [{"role": "system", "content": text_of(rng, 4)}] if i % 3 == 0 else []
        for _ in range(rng.randint(0, 2)):
            turns += [{"role": "user", "content": text_of(rng, 6)}, {"role": "assistant", "content": text_of(rng, 6)}]
        yield {"messages": turns + [{"role": "user", "content": "Q: " + text_of(rng, 8)}]}
    for _ in range(6):
        yield {"prompt": "Q: " + text_of(rng, 8)}


def tokens_of(tokenizer, case):
    if "prompt" in case:
        return tokenizer(case["prompt"] + case["response"])["input_ids"]
    turns = case["messages"] + [{"role": "assistant", "content": case["response"]}]
    ids = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=True)["input_ids"]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    assert text.startswith(BOS) and tokenizer(text[len(BOS):])["input_ids"] == ids
    return ids


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rng = random.Random(SEED)
    model, tokenizer = make_model(), make_tokenizer()
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (out / "chat_template.jinja").write_text(TEMPLATE)
    (out / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": "<|im_end|>"}, indent=2) + "\n")
    save_file({n: p.detach().clone().contiguous() for n, p in model.named_parameters()}, out / "model.safetensors",
              metadata={"format": "pt"})
    model = model.double()
    cases = []
    for case in make_prompts(rng):
        case["response"] = text_of(rng, 8)
        case["ids"] = tokens_of(tokenizer, case)
        with torch.no_grad():
            case["score"] = model(input_ids=torch.tensor([case["ids"]])).logits[0, -1].item()
        cases.append(case)
    (out / "cases.json").write_text("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")
    files = ["config.json", "chat_template.jinja", "tokenizer_config.json", "model.safetensors", "cases.json"]
    manifest = {"script": "gen/make_reward_model.py", "seed": SEED,
                "versions": {"transformers": transformers.__version__, "torch": torch.__version__, "numpy": np.__version__},
                "tokenizer": "tokenizers/llama3.json",
                "sha256": {f: hashlib.sha256((out / f).read_bytes()).hexdigest() for f in files}}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    print(len(cases), "cases, scores", [round(c["score"], 3) for c in cases])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
