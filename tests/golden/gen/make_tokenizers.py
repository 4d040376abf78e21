#!/usr/bin/env python3
"""Makes tests/golden/tokenizers: small byte-level BPE tokenizers and what Hugging Face's library does with texts.

Usage: make_tokenizers.py OUT_DIR      (needs the package tokenizers; versions go into manifest.json)
"""
import hashlib
import json
import pathlib
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

L3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
      r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = L3.replace(r"\p{N}{1,3}", r"\p{N}")

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's what they've said, isn't it?",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))  # 3\n",
    "Numbers: 1, 22, 333, 4444, 55555. Prices: $12.50, 99%.",
    "Größe, naïve café, Łódź, 東京タワー, Привет мир, שלום, 😀😀 emoji",
    "   leading   and trailing   spaces   \t\ttabs\r\nwindows\r\n",
] * 4

TEXTS = CORPUS[:5] + [
    "", " ", "\n", "a", "  a", "a  ", "   \n  b", "don't DON'T 'S", "x" * 300, "12345678", "e\u0301 vs \u00e9",
    "<|im_start|>user\nhi<|im_end|>", "<|im_start|", "a<|im_end|><|im_end|>b", "\u200d\u200b zero width", "ſ'ſ", "½ ² ٣",
    "tab\tnew\nline\rcr", "mixed 漢字and latin123abc", "\u180e mongolian",
]


def build(kind):
    tok = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    if kind == "gpt2":
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tok.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(L3 if kind == "llama3" else QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
    if kind == "qwen2":
        tok.normalizer = normalizers.NFC()
    tok.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator(CORPUS, trainer)
    if kind == "llama3":
        bos = tok.token_to_id("<|endoftext|>")
        tok.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", bos)]),
        ])
    else:
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.add_tokens([AddedToken("<tool>", normalized=True, special=False)])
    return tok


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    manifest = {"tokenizers": tokenizers.__version__, "sha256": {}}
    for kind in ("gpt2", "llama3", "qwen2"):
        tok = build(kind)
        path = out / f"{kind}.json"
        tok.save(str(path), pretty=False)
        cases = []
        for text in TEXTS + ["call <tool> now<tool>"]:
            ids = tok.encode(text, add_special_tokens=False).ids
            cases.append({
                "text": text, "ids": ids, "ids_special": tok.encode(text).ids,
                "decoded": tok.decode(ids, skip_special_tokens=True),
                "decoded_all": tok.decode(ids, skip_special_tokens=False),
            })
        (out / f"{kind}.cases.json").write_text(json.dumps(cases, ensure_ascii=True))
        for name in (f"{kind}.json", f"{kind}.cases.json"):
            manifest["sha256"][name] = hashlib.sha256((out / name).read_bytes()).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
