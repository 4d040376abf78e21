#!/usr/bin/env python3
"""How fast rankd's tokenizer encodes, beside Hugging Face's, on one thread and the same texts.

Usage: tokenizers_compare.py LIBRARY TOKENIZER.json... [--corpus GLOB]... [--megabytes N] [--json FILE]
       tokenizers_compare.py --train DIR [--corpus GLOB]... [--megabytes N]

LIBRARY is build/lib/librankd_driver.so of a release build. The texts are files of --corpus (default: Python's own
library and /usr/share/doc) cut into documents of up to 100,000 characters and into turns of 20 to 400. --train makes
tokenizers of 32,000 to 128,000 tokens from the same files, in the shapes of Llama 3, Qwen 2, GPT-2, DeepSeek-V3,
Llama 2 and Gemma. Figures are megabytes of UTF-8 a second of processor time, the best of three runs that alternate.
"encode" is Tokenizer.encode, "fast" is encode_batch_fast on lists of one, which leaves offsets out. The ids of both
programs are compared, too. Needs the package tokenizers.
"""
import argparse
import ctypes
import glob
import json
import os
import pathlib
import random
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [os.path.dirname(os.__file__) + "/**/*.py", "/usr/share/doc/**/*.txt", "/usr/share/doc/**/*.md",
          "/usr/share/doc/**/copyright", "/usr/include/**/*.h", "/usr/share/i18n/locales/*"]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]


class Ids(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_int64)]


class Rankd:
    """The functions of text/rk_tokenizer.h."""

    def __init__(self, library, path):
        pointer = ctypes.c_void_p
        self.lib = ctypes.CDLL(library)
        self.lib.rk_tokenizer_create_file.argtypes = [pointer, ctypes.c_char_p]
        self.lib.rk_tokenizer_create_file.restype = pointer
        self.lib.rk_tokenizer_encode.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_bool, pointer]
        self.lib.rk_tokenizer_encode.restype = pointer
        self.lib.rk_status_message.argtypes = [pointer]
        self.lib.rk_status_message.restype = ctypes.c_char_p
        self.lib.rk_free.argtypes = [pointer]
        self.handle = pointer()
        self.check(self.lib.rk_tokenizer_create_file(ctypes.byref(self.handle), str(path).encode()))

    def check(self, status):
        if status:
            sys.exit("tokenizers_compare.py: " + self.lib.rk_status_message(status).decode())

    def encode(self, text):
        out = Ids()
        self.check(self.lib.rk_tokenizer_encode(self.handle, text, len(text), False, ctypes.byref(out)))
        ids = out.items[:out.count]
        self.lib.rk_free(out.items)
        return ids

    def time(self, texts):
        out, encode, free = Ids(), self.lib.rk_tokenizer_encode, self.lib.rk_free
        reference = ctypes.byref(out)
        begin = time.process_time()
        for text in texts:
            encode(self.handle, text, len(text), False, reference)
            free(out.items)
        return time.process_time() - begin


def read_corpus(patterns, limit):
    """Documents, the same for the same files."""
    paths = sorted({path for pattern in patterns for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)})
    random.Random(1).shuffle(paths)
    documents, total = [], 0
    for path in paths:
        try:
            text = pathlib.Path(path).read_text(encoding="utf-8")[:100_000]
        except (UnicodeDecodeError, OSError):
            continue
        if len(text) > 400:
            documents.append(text)
            total += len(text)
        if total > limit:
            break
    return documents


def cut_turns(documents):
    rng, turns = random.Random(2), []
    for document in documents:
        at = 0
        while at < len(document):
            size = rng.randint(20, 400)
            turns.append(document[at:at + size])
            at += size
    return turns


def byte_level(pre_tokenizer, size, corpus, **options):
    tok = Tokenizer(models.BPE(**options))
    tok.pre_tokenizer = pre_tokenizer
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return tok


def train(folder, corpus):
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = lambda pattern: pre_tokenizers.Split(Regex(pattern), "isolated")
    sequence = lambda *steps: pre_tokenizers.Sequence([*steps, bytes_only])
    make = {
        "gpt2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 50257, corpus),
        "llama3": lambda: byte_level(sequence(split(LLAMA3)), 128000, corpus, ignore_merges=True),
        "qwen2": lambda: byte_level(sequence(split(LLAMA3.replace("{1,3}", ""))), 128000, corpus),
        "deepseek": lambda: byte_level(sequence(*map(split, DEEPSEEK)), 100000, corpus),
    }
    for name, function in make.items():
        tok = function()
        if name == "qwen2":
            tok.normalizer = normalizers.NFC()
        tok.save(str(folder / f"{name}.json"), pretty=False)
        print(name, tok.get_vocab_size(), flush=True)
    # Trained on words; used without a pre-tokenizer, as in the models.
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    tok.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=32000, show_progress=False, limit_alphabet=4000,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]))
    parts = json.loads(tok.to_str())
    parts["added_tokens"] = parts["added_tokens"][:3]
    parts["pre_tokenizer"] = None
    prepend, replace = {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    for name, normalizer, pre in (("llama2", {"type": "Sequence", "normalizers": [prepend, replace]}, None),
                                  ("gemma", replace, {"type": "Split", "pattern": {"String": " "}, "invert": False,
                                                      "behavior": "MergedWithPrevious"})):
        (folder / f"{name}.json").write_text(json.dumps({**parts, "normalizer": normalizer, "pre_tokenizer": pre}))
        print(name, tok.get_vocab_size(), flush=True)


def time_reference(function, texts):
    begin = time.process_time()
    for text in texts:
        function(text)
    return time.process_time() - begin


def compare(library, path, kinds):
    reference, ours = Tokenizer.from_file(path), Rankd(library, path)
    rows = []
    for kind, texts in kinds.items():
        raw = [text.encode() for text in texts]
        different = sum(ours.encode(b) != reference.encode(t, add_special_tokens=False).ids for t, b in zip(texts, raw))
        runs = {"rankd": lambda: ours.time(raw),
                "encode": lambda: time_reference(lambda t: reference.encode(t, add_special_tokens=False), texts),
                "fast": lambda: time_reference(lambda t: reference.encode_batch_fast([t], add_special_tokens=False), texts)}
        seconds = {name: [] for name in runs}
        for _ in range(3):
            for name, run in runs.items():
                seconds[name].append(run())
        megabytes = sum(map(len, raw)) / 1e6
        row = {"tokenizer": pathlib.Path(path).stem, "vocab_size": reference.get_vocab_size(), "texts": kind,
               "different": different, **{name: round(megabytes / min(times), 2) for name, times in seconds.items()}}
        row["ratio"] = round(row["rankd"] / max(row["encode"], row["fast"]), 2)
        rows.append(row)
        print(f"{row['tokenizer']:12} {row['vocab_size']:7} {kind:10} {row['rankd']:8.2f} {row['encode']:8.2f} {row['fast']:8.2f} "
              f"{row['ratio']:6.2f}   {different} of {len(texts)}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="LIBRARY TOKENIZER.json...")
    parser.add_argument("--train", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--corpus", action="append", metavar="GLOB")
    parser.add_argument("--megabytes", type=float, metavar="N")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    corpus = read_corpus(options.corpus or CORPUS, int((options.megabytes or (60 if options.train else 2)) * 1e6))
    if options.train:
        options.train.mkdir(parents=True, exist_ok=True)
        return train(options.train, corpus)
    if len(options.paths) < 2:
        parser.error("a library and a tokenizer are expected")
    print(f"tokenizers {tokenizers.__version__}; MB/s of processor time, one thread")
    print(f"{'tokenizer':12} {'tokens':>7} {'texts':10} {'rankd':>8} {'encode':>8} {'fast':>8} {'ratio':>6}   different")
    rows = [row for path in options.paths[1:]
            for row in compare(options.paths[0], path, {"documents": corpus, "turns": cut_turns(corpus)})]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
