#!/usr/bin/env python3
"""Values of overrides as Hydra reads them: VALUE<tab>JSON a line, for tests/golden/hydra/values.tsv.

Made with hydra-core 1.3.2. Written by hand and, from the seed 20260822, at random. What Hydra refuses is "!".
"""
import json
import random

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

WRITTEN = """True|false|TRUE|null|NULL|1|-12|+7|1_000|007|0|1e-6|.5|5.|-1.5E+3|1_0.5|a|a b|  padded  |a=b|a:b|
/h/data/train.parquet|~/data|$HOME/x|a-b_c.d|a@b|50%|x?y|'a'|"a"|'a, b'|'it\\'s'|"say \\"x\\""|'back\\slash'|
'two\\\\'|''|""|'true'|'1'|[]|[a]|[a,b]|[ a , b ]|[1,2.5,true,null,x]|['a','b c']|["a",'b']|[[1,2],[]]|
[a b,c d]|['/h/a.parquet', '/h/b.parquet']|{}|{a:1}|{a: 1, b: two}|{a:{b:[1,{c:d}]}}|{'x y':1}|{a b:1}|
{a:'x,y'}|{a:b:c}|[a:b]|a\\,b|[a\\,b]|\\(x\\)|[|[a|{a|{a:|{a:1|[a,,b]|['a|'a|"a|[a]b|{a:1}x|'a'b|[a,b]]|{:1}|
['a' 'b']|{a}|[a b , c]|[ ]|{ }|a\\ b|[1_0]|[0x10]|[1e3]|[+1]|[-0.5]|[1.2.3]|[1-2]|[True,False]"""

WORDS = ["a", "b c", "1", "-2", "0.5", "1e-3", "true", "null", "'q,r'", '"s:t"', "/p/q.r", "x-y", "''", "'it\\'s'"]


def element(rng, depth):
    kind = rng.random()
    if depth < 3 and kind < 0.25:
        return "[" + ",".join(element(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    if depth < 3 and kind < 0.5:
        names = rng.sample(["k", "long_name", "k2", "q k"], rng.randrange(4))
        return "{" + ", ".join(f"{n}: {element(rng, depth + 1)}" for n in names) + "}"
    word = rng.choice(WORDS)
    return f" {word} " if rng.random() < 0.2 else word


def plain(value):
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(getattr(key, "text", key)): plain(item) for key, item in value.items()}
    return getattr(value, "text", value)


def main():
    rng = random.Random(20260822)
    parser = OverridesParser.create()
    values = [v for v in WRITTEN.replace("\n", "").split("|") if v]
    values += [element(rng, 0) for _ in range(300)]
    for value in dict.fromkeys(values):
        try:
            parsed = parser.parse_override(f"k={value}")
            text = json.dumps(plain(parsed._value))
        except HydraException:
            text = "!"
        print(f"{value}\t{text}")


main()
