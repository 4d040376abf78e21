#!/usr/bin/env python3
"""Makes tests/golden/rewards/cases.json: scores of verl's own functions on hand-picked and random texts.

    python3 make_rewards.py --verl CHECKOUT/verl/utils/reward_score --commit HASH > tests/golden/rewards/cases.json

Needs a checkout of verl and Python's standard library. The functions of one file each are loaded by themselves. The
box rule of math_dapo for responses without "Answer:" (verl #7407) is applied here with verl's own box function when
the checkout is older than it.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import platform
import random
import re

SEED = 9
COUNT = 700  # random cases of each kind


def load(folder, name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pick(rng, pieces, longest):
    return "".join(rng.choice(pieces) for _ in range(rng.randint(1, longest)))


NUMBERS = ["72", "1,234", "1234", "-7", "-7.", "12.0", "12", ".", ",", "3", "0", "1.5", "--5", "-"]
GSM8K_PIECES = NUMBERS + ["#### ", "####", "####  ", "#", " ", "\n", "$", "é", "so ", "x = ", "\u0664", "####\n"]
GSM8K_HAND = [
    ("so 3*4=12\n#### 12", "12"),
    ("#### 1,234", "1234"),
    ("#### -7.", "-7"),
    ("#### -7.", "-7."),
    ("#### $5", "5"),
    ("answer is 12", "12"),
    ("x #### 3 then #### 4", "4"),
    ("#### 12.0", "12"),
    ("####12", "12"),
    ("####  12", "12"),
    ("#### 12" + "x" * 300, "12"),
    ("#### 12" + "é" * 293, "12"),
    ("#### 12" + "é" * 294, "12"),
    ("#### 12" + "é" * 288, "12"),
    ("", "12"),
    ("...", "."),
    (". .", "."),
    ("#### #### 5", "5"),
    ("#### 5\0#### 6", "6"),
]

MATH_PIECES = [
    "\\frac", "\\dfrac", "\\tfrac", "1", "2", "12", "72", "3", "{", "}", "{1}", "{2}", "/", "0.5", ".5", ".", "\\sqrt", "\\text{ ",
    "\\text{", "cm", "\\left", "\\right", "(", ")", "^\\circ", "^{\\circ}", "\\%", "%", "\\$", "=", "x", "k", "abc", "\\!", "\\\\",
    "\n", " ", "é", "-", ",", "\\pi", "+", "0", "\0", "½",
]
MATH_NOISE = ["", " ", "\\!", "\\left", "\\right", "\n", "^\\circ", "\\%", "\\$"]
MATH_HAND = [
    ("\\boxed{\\frac12}", "\\frac{1}{2}"),
    ("\\boxed{1/2}", "\\frac{1}{2}"),
    ("\\boxed{0.5}", "\\frac{1}{2}"),
    ("\\boxed{.5}", "\\frac{1}{2}"),
    ("\\boxed{\\dfrac{3}{4}}", "\\frac{3}{4}"),
    ("\\boxed{x=5}", "5"),
    ("\\boxed{50\\%}", "50"),
    ("\\boxed{\\sqrt3}", "\\sqrt{3}"),
    ("\\boxed{10 \\text{ cm}}", "10"),
    ("\\boxed{90^\\circ}", "90"),
    ("\\boxed{abc=5}", "5"),
    ("\\boxed{1,000}", "1000"),
    ("\\fbox{7}", "7"),
    ("\\boxed 7$ and", "7"),
    ("\\boxed{7} \\boxed 8", "8"),
    ("\\boxed{7", "7"),
    ("\\boxed{{7}}", "{7}"),
    ("\\boxed}{7}", "7"),
    ("\\boxed{\\frac}", "\\frac"),
    ("\\boxed{\\frac1}", "\\frac1"),
    ("\\boxed{\\sqrt}", "\\sqrt"),
    ("\\boxed{\\frac1{72}}", "\\frac{1}{72}"),
    ("\\boxed{5 \\text{ a} \\text{ b}}", "5 \\text{ a} \\text{ b}"),
    ("\\boxed{5 \\text{ a} \\text{ b}}", "5"),
    ("\\boxed{-1/2}", "\\frac{-1}{2}"),
    ("\\boxed{-0/2}", "\\frac{-0}{2}"),
    ("\\boxed{01/2}", "\\frac{01}{2}"),
    ("\\boxed{1/-2}", "\\frac{1}{-2}"),
    ("\\boxed{1_0/2}", "\\frac{10}{2}"),
    ("\\boxed{+1/2}", "\\frac{1}{2}"),
    ("\\boxed{" + "9" * 4300 + "/1}", "\\frac{" + "9" * 4300 + "}{1}"),
    ("\\boxed{" + "9" * 4301 + "/1}", "\\frac{" + "9" * 4301 + "}{1}"),
    ("\\boxed{éé=5}", "5"),
    ("\\boxed{ééé=5}", "5"),
    ("\\boxed{\\sqrté}", "\\sqrt{é}"),
    ("\\boxed{\\fracé½}", "\\frac{é}{½}"),
    ("\\boxed{}", ""),
    ("\\boxed{}", " "),
    ("nothing", "nothing"),
]

DAPO_PIECES = [
    "an ", "a ", ".$", "\\$", "\\ ", " ", "mbox", "text", ",\\text{and}", "\\text{and}", "\\text{m}", "square", "dollars", "km",
    "units", "degrees", "cm", "points", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{\n}", "\\text{}",
    "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots", "$", "\\text{", "\\textbf{", "\\overline{",
    "\\boxed{", "}", "{", "frac", "\\frac", "sqrt", "\\sqrt", "1", "2", "12", "1,000", ",", "x", "=", "\n", "é", "apples", "7",
]
DAPO_ANSWERS = ["Answer:", "answer : ", "ANSWER:\n", "An\u017fwer:", "Answer:\u00a0", "Answer\t:\t", "Answer", "The answer: "]
DAPO_HAND = [
    ("Answer: 42", "42"),
    ("answer : $42$", "42"),
    ("Answer: 1,000", "1000"),
    ("Answer: x=5", "5"),
    ("Answer: 3\nAnswer: 4", "4"),
    ("Answer: \\frac12", "\\frac{1}{2}"),
    ("Answer: \\boxed{42}", "42"),
    ("Answer:\n7", "7"),
    ("Answer: 12 degrees", "12"),
    ("The answer: 12 apples", "12 apples"),
    ("so \\boxed{42}.", "42"),
    ("\\boxed{ 42}", "42"),
    ("\\boxed{1,000}", "1000"),
    ("\\boxed{42}" + " " * 90, "42"),
    ("\\boxed{42}" + " " * 95, "42"),
    ("\\fbox{7}", "7"),
    ("\\boxed 7", "7"),
    ("no answer", "7"),
    ("Answer: 41 \\boxed{42}", "42"),
    ("Answer:", ""),
    ("Answer: ", ""),
    ("Answer: \n", ""),
    ("Answer:\n", ""),
    ("Answer:\n \n\t", "x"),
    ("Answer: 7" + "x" * 300, "7"),
    ("Answer: " + "é" * 292, "é" * 292),
    ("Answer: " + "é" * 293, "é" * 293),
    ("Answer: a$1$ or $2$ b", "1"),
    ("Answer: 7\0", "7"),
]

QA_PIECES = ["The ", "a", "an ", " the", "Beatles", "!", "U.S.", ",", " ", "\n", "\u00a0", "_", "É", "é", "paris", "PARIS", "athe", "a-b", "—",
             "İ", "中", "²", "x"]
QA_HAND = [
    ("<answer>The Beatles!</answer>", ["beatles"]),
    ("<answer>U.S.</answer>", "us"),
    ("<answer>an  apple</answer>", "apple"),
    ("<answer>Paris is big</answer>", "paris"),
    ("<answer>A</answer><answer> Paris, France </answer>", ["paris france", "x"]),
    ("<answer>x</answer>" * 11, "x"),
    ("<answer>x</answer>" * 10, "x"),
    ("<answer><answer>x</answer></answer>", "x"),
    ("<answer>x", "x"),
    ("<answer></answer>", ""),
    ("<answer>a</answer>", "the"),
]


def random_gsm8k(rng):
    return pick(rng, GSM8K_PIECES, 14), rng.choice(NUMBERS)


def random_math(rng):
    content = pick(rng, MATH_PIECES, 7)
    before, after = rng.choice(["\\boxed{", "\\boxed{", "\\boxed{", "\\boxed ", "\\fbox{", "\\boxed"]), rng.choice(["}", "}", "}", "}$", "$", ""])
    truth = pick(rng, MATH_PIECES, 5)
    if rng.random() < 0.7:
        at = rng.randint(0, len(content))
        truth = content[:at] + rng.choice(MATH_NOISE) + content[at:]
    if rng.random() < 0.3:
        truth = truth.replace("dfrac", "frac").replace("\\frac12", "1/2").replace("0.5", "1/2")
    return rng.choice(["", "so ", "\\boxed{1} ", "$"]) + before + content + after, truth


def random_dapo(rng):
    content = pick(rng, DAPO_PIECES, 7)
    truth = pick(rng, DAPO_PIECES, 4)
    if rng.random() < 0.6:
        truth = content.replace("\n", "")
        at = rng.randint(0, len(truth))
        truth = truth[:at] + rng.choice(["", " ", "a ", "$", "cm", "\\text{}"]) + truth[at:]
    text = rng.choice(DAPO_ANSWERS) + content if rng.random() < 0.85 else "\\boxed{" + content + "}"
    return rng.choice(["", "so ", "Answer: 9\n"]) + text, truth


def random_qa(rng):
    content = pick(rng, QA_PIECES, 6)
    truth = pick(rng, QA_PIECES, 4)
    if rng.random() < 0.6:
        truth = content.swapcase() if rng.random() < 0.3 and "İ" not in content else content
        truth = rng.choice(["", "the ", " "]) + truth + rng.choice(["", ".", " an"])
    target = truth if rng.random() < 0.5 else ["nothing", truth]
    return rng.choice(["", "<answer>no</answer> "]) + "<answer>" + content + rng.choice(["</answer>", "</answer>.", ""]), target


def score_dapo(module, text, truth, strict):
    result = module.compute_score(text, truth, strict_box_verify=strict)
    if not strict and not re.findall(r"(?i)Answer\s*:\s*([^\n]+)", text[-300:]):
        right, pred = module.is_correct_strict_box(text[-300:], truth)
        result = {"score": float(right), "acc": right == 1, "pred": "[INVALID]" if pred is None else pred}
    return [result["score"], result["pred"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verl", required=True)
    parser.add_argument("--commit", required=True)
    arguments = parser.parse_args()
    rng = random.Random(SEED)
    gsm8k, math_reward = load(arguments.verl, "gsm8k"), load(arguments.verl, "math_reward")
    dapo, qa = load(arguments.verl, "math_dapo"), load(arguments.verl, "search_r1_like_qa_em")
    kinds = [
        ("gsm8k", {}, GSM8K_HAND, random_gsm8k, lambda s, t: [gsm8k.compute_score(s, t)]),
        ("gsm8k", {"method": "flexible", "format_score": 0.25}, GSM8K_HAND, random_gsm8k,
         lambda s, t: [gsm8k.compute_score(s, t, method="flexible", format_score=0.25)]),
        ("math", {}, MATH_HAND, random_math, lambda s, t: [math_reward.compute_score(s, t)]),
        ("math_dapo", {}, DAPO_HAND, random_dapo, lambda s, t: score_dapo(dapo, s, t, False)),
        ("math_dapo", {"strict_box_verify": True}, DAPO_HAND, random_dapo, lambda s, t: score_dapo(dapo, s, t, True)),
        ("exact", {"method": "qa_em"}, QA_HAND, random_qa, lambda s, t: [qa.compute_score(s, {"target": t})]),
    ]
    groups = []
    for name, config, hand, make, score in kinds:
        cases = []
        for text, truth in hand + [make(rng) for _ in range(COUNT)]:
            with contextlib.redirect_stdout(io.StringIO()):
                expected = score(text, truth)
            truth = truth if name != "exact" else json.dumps({"target": truth}, ensure_ascii=False)
            if truth and "\0" not in truth:  # rankd rejects prompts without ground truth, and with NUL in it
                cases.append([text, truth, *expected])
        groups.append({"config": {"name": name, **config}, "cases": cases})
    meta = {"verl": arguments.commit, "python": platform.python_version(), "seed": SEED}
    print("{\"meta\": %s, \"groups\": [" % json.dumps(meta))
    for i, group in enumerate(groups):
        print("{\"config\": %s, \"cases\": [" % json.dumps(group["config"]))
        print(",\n".join(json.dumps(case, ensure_ascii=False) for case in group["cases"]))
        print("]}" + ("," if i + 1 < len(groups) else ""))
    print("]}")


if __name__ == "__main__":
    main()
