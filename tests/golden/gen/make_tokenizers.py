#!/usr/bin/env python3
"""Makes tests/golden/tokenizers: small BPE tokenizers in the shapes of known models, and what Hugging Face's library
does with texts.

Usage: make_tokenizers.py OUT_DIR      (needs the packages tokenizers and transformers; versions go into manifest.json)

NAME.json            a tokenizer
NAME.cases.json      texts with their ids and what these decode to
fragments.json       what the 3,000 texts are made of; text() below and the test make the same texts of it
hashes.json          NAME: 4 hex digits a text, of everything that is done with it
sets.json            random patterns of sets, and texts in which their matches are replaced by "#"
"""
import hashlib
import json
import os
import pathlib
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

NUM_TEXTS = 3000

L3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
      r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = L3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
HAN_APART = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?" +
             UPPER + "+" + LOWER + r"*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")

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

FRAGMENTS = {
    "groups": [
        {"weight": 12, "items": "the of and to in is that it for was with be on not he as you do at this but his by from they we "
         "say her she or an will my one all would there their what so up out if about who get which go me when make can "
         "like time no just him know take people into year your good some could them see other than then now look only "
         "come its over think also back after use two how our work first well way even new want because any these give "
         "day most us Hello World Question Answer reasoning therefore step number equals sum apples".split()},
        {"weight": 3, "items": "HTTP iPhone XMLParser camelCaseName snake_case_name CONSTANT_VALUE don't I'll WE'RE it's you'd "
         "John's O'Neill e.g. i.e. U.S.A. www.example.com user@example.com C++ v1.2.3 x86_64 rock'n'roll".split()},
        {"weight": 4, "items": ["0", "1", "7", "42", "100", "1234", "3.14159", "1,000,000", "0x1F", "2024-01-31", "12:30",
                                "50%", "$9.99", "¼", "²", "٣٤", "१२३", "Ⅷ", "①", "１２", "1e-5", "00000000"]},
        {"weight": 5, "items": [".", ",", "!", "?", "...", ";", ":", "-", "--", "(", ")", "[", "]", "{", "}", "\"", "'",
                                "“", "”", "—", "…", "#", "##", "*", "**", "/", "//", "\\", "&", "&&", "|", "==", "=>", "<",
                                ">", "+", "=", "_", "__", "`", "```", "~", "^", "@", "¿", "«", "»", "。", "，", "、", "！"]},
        {"weight": 5, "items": [" ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", "\t\t", " \n", "\n ", "\u00a0", "\u2003", "\u3000",
                                "\u2028", "\u0085", "\u000b", "\u000c", "\u1680", "\u202f", "\r"]},
        {"weight": 3, "items": ["def f(x):\n    return x", "for (int i = 0; i < n; i++) {", "if __name__ == \"__main__\":",
                                "<div class=\"a\">", "</div>", "SELECT * FROM t WHERE a = 1;", "#include <stdio.h>\n",
                                "a->b", "x := y", "\\frac{1}{2}", "$x^2$", "import numpy as np\n", "std::vector<int>"]},
        {"weight": 4, "items": ["東京", "漢字", "你好世界", "今天天气很好", "ひらがな", "カタカナ", "한국어", "안녕하세요", "Привет", "мир",
                                "Москва", "Ελληνικά", "עברית", "العربية", "हिन्दी", "ภาษาไทย", "বাংলা", "தமிழ்", "ქართული",
                                "Größe", "naïve", "café", "Łódź", "İstanbul", "ıspanak", "ẞ", "ß", "ŉ", "Ǆ", "ﬁ", "ﬆ", "Å",
                                "㍿", "①②③", "ｆｕｌｌ", "ｶﾞ", "ầ", "Ⓐⓑ", "🄰", "K", "ſ"]},
        {"weight": 3, "items": ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪", "❤️", "🤖", "©", "™", "→", "∑", "≤", "€", "£", "№", "½", "°", "±"]},
        {"weight": 2, "items": ["e\u0301", "a\u0308\u0323", "o\u031b\u0301", "\u0301", "\u1100\u1161\u11a8", "\u0915\u094d\u0937",
                                "\u0e33", "q\u0307\u0323", "\u0344", "\u212b", "\u2126", "\ufb2c", "\u0f73"]},
        {"weight": 2, "items": ["\u0000", "\u0001", "\u007f", "\u00ad", "\u180e", "\u200b", "\u200c", "\u200d", "\u2060",
                                "\ufeff", "\ufffd", "\ufffe", "\u2581", "\u2581\u2581", "\ue000", "\U000f0000", "Ġ", "Ċ",
                                "<0x41>", "<0xE2>", "\u0120the", "\u2581the"]},
        {"weight": 3, "items": ["<s>", "</s>", "<unk>", "<pad>", "<mask>", "<tool>", "</tool>", "<|endoftext|>", "<|im_start|>",
                                "<|im_end|>", "<|im_start|>user\n", "<|im_start", "<word>", "<strip>", "ＴＯＫＥＮ", "token",
                                "<｜User｜>", "<start_of_turn>", "Caps Token", "<s", "s>"]},
    ],
    # The code points of one more group: assigned since Unicode 8, so that all libraries classify
    # them equally.
    "range_weight": 3,
    "ranges": [[0x20, 0x7e], [0x20, 0x7e], [0xa0, 0x17f], [0x370, 0x3ff], [0x400, 0x4ff], [0x5d0, 0x5ea], [0x620, 0x64a],
               [0x904, 0x939], [0xe01, 0xe2e], [0x1e00, 0x1eff], [0x2010, 0x2027], [0x2190, 0x21ff], [0x2500, 0x257f],
               [0x3041, 0x3096], [0x30a1, 0x30fa], [0x4e00, 0x9fa5], [0xac00, 0xd7a3], [0xff01, 0xff5e],
               [0x1d400, 0x1d454], [0x1f600, 0x1f64f], [0x20000, 0x2a6d6]],
}

MASK = (1 << 64) - 1


class Rng:
    """SplitMix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % n


def fragment(rng):
    total = sum(group["weight"] for group in FRAGMENTS["groups"]) + FRAGMENTS["range_weight"]
    at = rng.below(total)
    for group in FRAGMENTS["groups"]:
        if at < group["weight"]:
            return group["items"][rng.below(len(group["items"]))]
        at -= group["weight"]
    low, high = FRAGMENTS["ranges"][rng.below(len(FRAGMENTS["ranges"]))]
    return chr(low + rng.below(high - low + 1))


def text(rng):
    out = ""
    for _ in range(rng.below(24) + 1):
        piece = fragment(rng)
        if rng.below(12) == 0:
            piece *= rng.below(6) + 1
        out += " " + piece if rng.below(2) == 0 else piece
    return out


def random_ids(rng, num_ids):
    return [rng.below(num_ids + 3) for _ in range(rng.below(24))]


def fnv(data, value=0xCBF29CE484222325):
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def ids_bytes(ids):
    return b"".join(i.to_bytes(4, "little") for i in ids) + b"\xff"


def special(content, **options):
    return AddedToken(content, special=True, normalized=False, **options)


def plain(content, **options):
    return AddedToken(content, special=False, **options)


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPM_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def corpus():
    return CORPUS + [text(Rng(1_000_003 + i)) for i in range(1500)]


def train(tok, vocab_size, first, **options):
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=first, show_progress=False, **options)
    tok.train_from_iterator(corpus(), trainer)
    parts = json.loads(tok.to_str())
    parts["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(parts))


def byte_level(tok, vocab_size=420, special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>")):
    tok = train(tok, vocab_size, list(special_tokens), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.add_tokens([special(content) for content in special_tokens])
    return tok


def spm(tok, first=("<unk>", "<s>", "</s>")):
    """A SentencePiece-like vocabulary: bytes, few characters, merges."""
    tok = train(tok, 620, list(first) + BYTES, limit_alphabet=110)
    tok.add_tokens([special(content) for content in first])
    return tok


def spm_model(**options):
    return models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True, **options)


def template(tok, single):
    names = [name for name in single.split() if not name.startswith("$")]
    return processors.TemplateProcessing(single=single, special_tokens=[(name, tok.token_to_id(name)) for name in set(names)])


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


BYTES_ONLY = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def build_old(kind):
    tok = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    if kind == "gpt2":
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tok.pre_tokenizer = pre_tokenizers.Sequence([split(L3 if kind == "llama3" else QWEN), BYTES_ONLY])
    if kind == "qwen2":
        tok.normalizer = normalizers.NFC()
    tok.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=names, show_progress=False,
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


def llama2():
    tok = Tokenizer(spm_model())
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok = spm(tok)
    tok.decoder = decoders.Sequence(SPM_DECODER + [decoders.Strip(" ", 1, 0)])
    tok.post_processor = template(tok, "<s> $A")
    tok.add_tokens([plain("<tool>", normalized=True), plain("<pad>", normalized=False), plain("<word>", single_word=True),
                    AddedToken("<mask>", special=True, normalized=True)])
    return tok


def mistral():
    tok = Tokenizer(spm_model())
    tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    tok = spm(tok)
    tok.decoder = decoders.Sequence(SPM_DECODER + [decoders.Strip(" ", 1, 0)])
    tok.post_processor = template(tok, "<s> $A </s>")
    tok.add_tokens([special("<|im_start|>"), plain("<tool>", normalized=False)])
    return tok


def metaspace():
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(left=False, right=True),
                                           normalizers.Replace(Regex(" {2,}"), "▁")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    tok = train(tok, 420, ["<pad>", "<unk>", "</s>"], limit_alphabet=100)
    tok.decoder = decoders.Metaspace("▁", prepend_scheme="always", split=True)
    tok.add_tokens([special(content) for content in ("<pad>", "<unk>", "</s>")])
    tok.post_processor = template(tok, "$A </s>")
    tok.add_tokens([plain("ＴＯＫＥＮ", normalized=True), plain("<strip>", lstrip=True, rstrip=True, normalized=False)])
    return tok


def metaspace_first():
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.normalizer = normalizers.Strip(left=True, right=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=True),
                                                 pre_tokenizers.Digits(individual_digits=True)])
    tok = train(tok, 420, ["<unk>"], limit_alphabet=100)
    tok.decoder = decoders.Metaspace("▁", prepend_scheme="never", split=True)
    tok.add_tokens([special("<unk>"), special("<|im_end|>"), plain("<tool>", normalized=False)])
    return tok


def gemma():
    names = ["<pad>", "</s>", "<s>", "<unk>", "<mask>"]
    tok = Tokenizer(spm_model(ignore_merges=False))
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok = spm(tok, names)
    tok.decoder = decoders.Sequence(SPM_DECODER)
    tok.post_processor = template(tok, "<s> $A")
    tok.add_tokens([special("<start_of_turn>")] + [plain("\n" * n, normalized=False) for n in range(2, 6)] +
                   [plain("▁" * n, normalized=False) for n in range(2, 5)] + [plain("</div>", normalized=False)])
    return tok


def deepseek():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([])
    tok.pre_tokenizer = pre_tokenizers.Sequence([split(pattern) for pattern in DEEPSEEK] + [BYTES_ONLY])
    tok = byte_level(tok, special_tokens=("<｜begin▁of▁sentence｜>", "<｜User｜>"))
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                              template(tok, "<｜begin▁of▁sentence｜> $A")])
    tok.add_tokens([plain("<｜tool▁calls｜>"), plain("Größe")])
    return tok


def deepseek_coder():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
        pre_tokenizers.Digits(individual_digits=True), BYTES_ONLY])
    tok = byte_level(tok)
    tok.decoder = decoders.ByteLevel()
    return tok


def roberta():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tok = byte_level(tok, special_tokens=("<s>", "<pad>", "</s>", "<unk>"))
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.RobertaProcessing(("</s>", tok.token_to_id("</s>")), ("<s>", tok.token_to_id("<s>")))
    tok.add_tokens([special("<mask>", lstrip=True)])
    return tok


def falcon():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation(behavior="contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")])
    tok = byte_level(tok)
    tok.decoder = decoders.ByteLevel()
    return tok


def phi():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok = byte_level(tok, special_tokens=("<|endoftext|>",))
    tok.decoder = decoders.ByteLevel()
    tok.add_tokens([plain(" " * n, normalized=False) for n in range(8, 1, -1)] +
                   [plain("\t" * n, normalized=False) for n in range(3, 1, -1)] +
                   [special("<|im_start|>", rstrip=True), special("<|im_end|>", rstrip=True, lstrip=True)])
    return tok


def classic():
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Whitespace(),
                                                 pre_tokenizers.Punctuation(behavior="merged_with_previous")])
    tok = train(tok, 420, ["<unk>", "<s>", "</s>"], limit_alphabet=100)
    tok.add_tokens([special(content) for content in ("<unk>", "<s>", "</s>")])
    tok.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    tok.add_tokens([AddedToken("Caps Token", special=True, normalized=True), plain("token", single_word=True)])
    return tok


def o200k():
    tok = Tokenizer(models.BPE(ignore_merges=True))
    tok.normalizer = normalizers.NFKD()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        split(O200K, "removed", True), pre_tokenizers.Split("ing", "merged_with_next"),
        pre_tokenizers.Split(Regex("(?=[A-Z])"), "isolated"), pre_tokenizers.Split(Regex("[^a-z]"), "contiguous"), BYTES_ONLY])
    tok = byte_level(tok)
    tok.decoder = decoders.ByteLevel()
    tok.add_tokens([special("<word>", single_word=True), plain("token", single_word=True), plain("<strip>", rstrip=True)])
    return tok


def set_intersection():
    """Kimi's and Moonlight's construct."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([split(HAN_APART), BYTES_ONLY])
    tok = byte_level(tok)
    tok.decoder = decoders.ByteLevel()
    return tok


def set_in_set():
    """Bloom's construct."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), split(r"[\W&&[^\s[*#]]]{2,}"), BYTES_ONLY])
    tok = byte_level(tok)
    tok.decoder = decoders.ByteLevel()
    return tok


NUM_SET_PATTERNS = 250
SET_ITEMS = ["a", "b-f", "x", "0-9", "5", "_", ".", ",", "é", "一-龥", "А-я", r"\s", r"\w", r"\d", r"\h", r"\S", r"\W", r"\H", r"\p{L}",
             r"\p{Han}", r"\P{Lu}", r"\p{^N}", r"\-", r"\]", r"\[", r"\n", "(", "|", "*", "&", "^", "#", "😀"]
SET_CHARACTERS = "abcdefxyzAFZ0159_.,-[]()|*&^#é中文龥АяЖ \n\t!😀²ß"


def random_set(rng, depth=0):
    operands = []
    for _ in range([1, 1, 1, 2, 2, 3][rng.below(6)]):
        operand = ""
        for _ in range(rng.below(3) + 1):
            if depth < 2 and rng.below(4) == 0:
                operand += random_set(rng, depth + 1)
            else:
                item = SET_ITEMS[rng.below(len(SET_ITEMS))]
                operand += r"\&" if item == "&" and (not operand or operand[-1] == "&") else item
        operands.append(r"\^" + operand[1:] if operand[0] == "^" else operand)
    return "[" + ("^" if rng.below(3) == 0 else "") + "&&".join(operands) + "]"


def set_rows():
    rng, rows = Rng(77), []
    while len(rows) < NUM_SET_PATTERNS:
        pattern = random_set(rng) + ["", "+", "{2}", "?x"][rng.below(4)] + (random_set(rng) if rng.below(3) == 0 else "")
        if "&&&" in pattern or "&]" in pattern:
            continue
        texts = ["".join(SET_CHARACTERS[rng.below(len(SET_CHARACTERS))] for _ in range(24)) for _ in range(2)]
        replace = normalizers.Replace(Regex(pattern), "#")
        rows.append([pattern] + [[content, replace.normalize_str(content)] for content in texts])
    return rows


SHAPES = {"gpt2": lambda: build_old("gpt2"), "llama3": lambda: build_old("llama3"), "qwen2": lambda: build_old("qwen2")}
for function in (llama2, mistral, metaspace, metaspace_first, gemma, deepseek, deepseek_coder, roberta, falcon, phi, classic,
                 o200k, set_intersection, set_in_set):
    SHAPES[function.__name__] = function


def case(tok, content):
    ids = tok.encode(content, add_special_tokens=False).ids
    return {"text": content, "ids": ids, "ids_special": tok.encode(content).ids,
            "decoded": tok.decode(ids, skip_special_tokens=True), "decoded_all": tok.decode(ids, skip_special_tokens=False)}


def digest(tok, seed):
    """Of ids without and with special tokens, what they decode to, and what random ids decode to."""
    rng = Rng(seed)
    one = case(tok, text(rng))
    loose = random_ids(rng, max(tok.get_vocab().values()) + 1)
    data = ids_bytes(one["ids"]) + ids_bytes(one["ids_special"])
    for decoded in (one["decoded"], one["decoded_all"], tok.decode(loose, skip_special_tokens=True),
                    tok.decode(loose, skip_special_tokens=False)):
        data += decoded.encode() + b"\xff"
    return f"{fnv(data) >> 48:04x}"


def check_transformers(tok, name):
    """transformers does the same with the file."""
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tok)
    for seed in range(NUM_TEXTS):
        one = case(tok, text(Rng(seed)))
        assert fast.encode(one["text"], add_special_tokens=False) == one["ids"], (name, seed)
        assert fast.encode(one["text"]) == one["ids_special"], (name, seed)
        assert fast.decode(one["ids"], skip_special_tokens=True) == one["decoded"], (name, seed)
        assert fast.decode(one["ids"]) == one["decoded_all"], (name, seed)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for name, function in SHAPES.items():
        tok = function()
        tok.save(str(out / f"{name}.json"), pretty=False)
        tok = Tokenizer.from_file(str(out / f"{name}.json"))
        cases = [case(tok, content) for content in TEXTS + ["call <tool> now<tool>"]]
        (out / f"{name}.cases.json").write_text(json.dumps(cases, ensure_ascii=True))
        hashes[name] = "".join(digest(tok, seed) for seed in range(NUM_TEXTS))
        check_transformers(tok, name)
        print(name, tok.get_vocab_size())
    (out / "sets.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in set_rows()) + "\n]\n")
    (out / "fragments.json").write_text(json.dumps(FRAGMENTS, ensure_ascii=True))
    (out / "hashes.json").write_text(json.dumps(hashes) + "\n")
    manifest = {"tokenizers": tokenizers.__version__, "transformers": transformers.__version__,
                "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                           for path in sorted(out.glob("*.json")) if path.name != "manifest.json"}}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
