#!/usr/bin/env python3
"""Makes tests/golden/chat: what Hugging Face transformers renders from chat templates.

Usage: make_chat.py OUT_DIR      (inputs: OUT_DIR/templates/*.jinja and chat_snippets.txt; needs transformers, jinja2)

Writes OUT_DIR/conversations.jsonl (200 conversations with tools and keyword arguments, from a seed),
expected.json (per template and conversation the SHA-256 of the text, cut to 16 hex digits, or "!" where rendering
raises, with the text of some and, for two templates, the token ids of some), snippets.json (one construct each, with its text or null where it raises) and
manifest.json (versions, seed).
"""
import datetime
import hashlib
import json
import pathlib
import random
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils

SEED = 20260109
NUM_CONVERSATIONS = 200
NUM_FULL = 3
NUM_IDS = 12
TOKENIZERS = {"chatml": "qwen2", "llama3": "llama3"}
NOW = 1767225845  # 2026-01-01 00:04:05 UTC
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

WORDS = ["apple", "Straße", "naïve", "東京", "мир", "e\u0301", "😀", "👩‍👩‍👧", "שלום", "x", "\u00a0", "don't", '"quoted"', "a\\b",
         "{{ x }}", "{% if %}", "<|im_end|>", "tab\there", "line\nbreak", "\r\n", "  two  ", "ΟΔΥΣΣΕΥΣ", "İstanbul", "1,000",
         "</think>", "<think>", "&amp;", "ﬁn", "\u2028", "\u200b", "%s", "É", "zero\u0000width"[:4], "ǆ", "½", "'"]


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc)


def words(rng, low, high):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))


def text(rng):
    kind = rng.random()
    if kind < 0.06:
        return ""
    if kind < 0.12:
        return rng.choice([" ", "\n", "\n\n lead", "trail \t\n", "\u3000wide\u3000", "\x1cfs\x1f"])
    return words(rng, 1, 9)


def schema(rng, depth=0):
    kind = rng.choice(["string", "integer", "number", "boolean", "array", "object"] if depth < 2 else ["string", "integer"])
    out = {"type": kind}
    if kind == "array" and rng.random() < 0.8:
        out["items"] = schema(rng, depth + 1)
    if kind == "object" and rng.random() < 0.8:
        out["properties"] = {n: schema(rng, depth + 1) for n in rng.sample(["b", "a", "Z", "é"], rng.randint(1, 3))}
    if rng.random() < 0.5:
        out["description"] = words(rng, 1, 4)
    return out


def tool(rng):
    names = rng.sample(["city", "unit", "limit", "straße", "query"], rng.randint(0, 3))
    function = {"name": rng.choice(["get_weather", "search", "f"]), "description": words(rng, 0, 5),
                "parameters": {"type": "object", "properties": {n: schema(rng) for n in names},
                               "required": names[:1]}}
    if rng.random() < 0.2:
        function["strict"] = True
    return {"type": "function", "function": function} if rng.random() < 0.9 else function


def value(rng, depth=0):
    return rng.choice([words(rng, 0, 3), rng.randint(-5, 10 ** 12), rng.choice([0.1, -2.5, 1e300, 1e-7, 3.0, 123456.789]), True,
                       False, None, [] if depth > 1 else [value(rng, depth + 1)],
                       {} if depth > 1 else {"k": value(rng, depth + 1), "ключ": 1}])


def call(rng):
    arguments = {n: value(rng) for n in rng.sample(["city", "unit", "limit"], rng.randint(0, 3))}
    out = {"type": "function", "function": {"name": rng.choice(["get_weather", "search"]),
                                            "arguments": arguments if rng.random() < 0.7 else json.dumps(arguments)}}
    if rng.random() < 0.8:
        out["id"] = "".join(rng.choice("abcdefgh123") for _ in range(9 if rng.random() < 0.8 else 5))
    return out if rng.random() < 0.9 else out["function"]


def content(rng):
    if rng.random() < 0.07:
        return [{"type": "text", "text": text(rng)} for _ in range(rng.randint(0, 3))]
    return text(rng)


def conversation(rng):
    messages = []
    if rng.random() < 0.45:
        messages.append({"role": "system", "content": content(rng)})
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 8] if messages else [1, 1, 1, 2, 3, 8])):
        messages.append({"role": "user", "content": content(rng)})
        if rng.random() < 0.25:
            message = {"role": "assistant", "content": rng.choice([None, "", text(rng)]),
                       "tool_calls": [call(rng) for _ in range(rng.choice([1, 1, 2]))]}
            if rng.random() < 0.3:
                del message["content"]
            messages.append(message)
            for _ in range(rng.randint(1, 2)):
                messages.append({"role": "tool", "content": rng.choice([text(rng), json.dumps(value(rng))]),
                                 "tool_call_id": "abc123abc", "name": "search"})
        if rng.random() < 0.75:
            message = {"role": "assistant", "content": text(rng)}
            if rng.random() < 0.2:
                message["content"] = "<think>\n" + text(rng) + "\n</think>\n\n" + text(rng)
            if rng.random() < 0.1:
                message[rng.choice(["reasoning_content", "thinking", "reasoning"])] = text(rng)
            messages.append(message)
    kind = rng.random()
    if kind < 0.04:
        messages.insert(rng.randrange(len(messages) + 1), {"role": "system", "content": text(rng)})
    elif kind < 0.07:
        del messages[-1][rng.choice(list(messages[-1]))]
    elif kind < 0.09:
        messages[-1]["content"] = rng.choice([5, True, {"a": 1}, 1.5])
    elif kind < 0.11:
        messages[rng.randrange(len(messages))]["role"] = rng.choice(["ipython", "narrator", ""])
    out = {"messages": messages, "add_generation_prompt": rng.random() < 0.8}
    if rng.random() < 0.35:
        out["tools"] = [tool(rng) for _ in range(rng.randint(1, 3))]
    kwargs = {}
    if rng.random() < 0.25:
        kwargs["enable_thinking"] = rng.choice([True, False, None])
    if rng.random() < 0.15:
        kwargs["date_string"] = words(rng, 1, 2)
    if rng.random() < 0.1:
        kwargs["functions_in_question"] = rng.random() < 0.5
    if rng.random() < 0.1:
        kwargs["thinking"] = rng.random() < 0.5
    if rng.random() < 0.1:
        kwargs["controls"] = {"b": "x", "A": 2, "c": None}
    if kwargs:
        out["kwargs"] = kwargs
    return out


def render(template, item):
    """What PreTrainedTokenizerBase.apply_chat_template(tokenize=False) gives; None when it raises."""
    try:
        if not item["messages"]:
            raise ValueError("empty")
        chat = [{k: v for k, v in m.items() if v is not None} for m in item["messages"]]
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[chat], tools=item.get("tools"), chat_template=template,
            add_generation_prompt=item["add_generation_prompt"], **{**SPECIAL, **item.get("kwargs", {})})
        texts[0].encode()
        return texts[0]
    except Exception:  # templates may raise any exception
        return None


def token_ids(tokenizer, template, item):
    """What apply_chat_template(tokenize=True) gives."""
    out = tokenizer.apply_chat_template(item["messages"], tools=item.get("tools"), chat_template=template, tokenize=True,
                                        return_dict=True, add_generation_prompt=item["add_generation_prompt"],
                                        **{**SPECIAL, **item.get("kwargs", {})})
    return out["input_ids"]


def main():
    out = pathlib.Path(sys.argv[1])
    chat_template_utils.datetime = FixedTime
    rng = random.Random(SEED)
    items = [conversation(rng) for _ in range(NUM_CONVERSATIONS)]
    items[0]["messages"] = []
    with open(out / "conversations.jsonl", "w") as file:
        for item in items:
            file.write(json.dumps(item, ensure_ascii=False) + "\n")
    expected = {}
    for path in sorted((out / "templates").glob("*.jinja")):
        texts = [render(path.read_text(), item) for item in items]
        hashes = ["!" if t is None else hashlib.sha256(t.encode()).hexdigest()[:16] for t in texts]
        full = {str(i): t for i, t in enumerate(texts) if t is not None}
        expected[path.stem] = {"hashes": " ".join(hashes), "texts": dict(list(full.items())[:NUM_FULL])}
        if path.stem in TOKENIZERS:
            file = out.parent / "tokenizers" / (TOKENIZERS[path.stem] + ".json")
            tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))
            expected[path.stem]["tokenizer"] = TOKENIZERS[path.stem]
            expected[path.stem]["ids"] = {i: " ".join(map(str, token_ids(tokenizer, path.read_text(), items[int(i)])))
                                          for i in list(full)[:NUM_IDS]}
        print(path.stem, "raises:", hashes.count("!"), "distinct:", len(set(hashes)))
    (out / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")
    snippets = []
    for line in (pathlib.Path(__file__).parent / "chat_snippets.txt").read_text().splitlines():
        if line and not line.startswith("##"):
            source = json.loads(line) if line.startswith('"') else line
            snippets.append([source, render(source, SNIPPET_ITEM)])
    rows = ",\n".join(json.dumps(s, ensure_ascii=False) for s in snippets)
    (out / "snippets.json").write_text("{\"item\": " + json.dumps(SNIPPET_ITEM, ensure_ascii=False) + ",\n\"rows\": [\n" + rows + "\n]}\n")
    print("snippets:", len(snippets), "raise:", sum(s[1] is None for s in snippets))
    (out / "manifest.json").write_text(json.dumps({
        "script": "tests/golden/gen/make_chat.py", "seed": SEED, "now": NOW, "special_tokens": SPECIAL,
        "transformers": transformers.__version__, "jinja2": jinja2.__version__,
        "python": sys.version.split()[0], "num_conversations": NUM_CONVERSATIONS}, indent=1) + "\n")


SNIPPET_ITEM = {
    "messages": [{"role": "user", "content": "Hi <b>&'\" é"}, {"role": "assistant", "content": "Yo", "n": 2}],
    "add_generation_prompt": True,
    "kwargs": {"s": "Hello World", "u": "ΑΣ ß ﬁ İ ǆ é\u0301", "ws": " \t a b\n\u00a0", "e": "", "n": 7, "f": 2.5, "neg": -7, "t": True,
               "nil": None, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "d": {"b": 1, "a": [1, 2], "C": None, "items": 5},
               "nested": {"x": {"y": [{"z": 1}, {"z": 2}]}}, "people": [{"n": "Bo", "a": 3}, {"n": "al", "a": 1}, {"n": "Cy"}],
               "big": 9007199254740993, "tiny": 1e-7, "huge": 1e22, "html": "<a href='x'>\"&</a>", "lines": "one\ntwo\n\nthree",
               "mixed": [1, "a", None, 2.0, True], "num": "42", "hex": "0x1f", "fl": "3.99", "bad": "x1",
               "documents": [{"title": "1", "text": "2"}, {"title": "ß", "text": "three"}]},
}

if __name__ == "__main__":
    main()
