"""Runs a Python reward function as a worker of rankctl's reward "python" (protocol 2, docs/rewards.md).

    python3 rankd_reward.py --path score.py --name compute_score [--style verl|verl_batch|trl]

Keyword arguments of every call are the member "kwargs" of the hello.

verl: compute_score(data_source=, solution_str=, ground_truth=, extra_info=, **kwargs) -> number or dict with "score"
verl_batch: compute_score(data_sources=, solution_strs=, ground_truths=, extra_infos=, **kwargs) -> list of these
trl:  f(prompts=, completions=, completion_ids=, **columns) -> list of numbers, None where the function does not apply

Either may be a coroutine function. Standard input and output are reserved for the protocol: output of the function
goes to standard error. Needs the standard library only.
"""

import argparse
import asyncio
import inspect
import json
import math
import numbers
import os
import sys
import traceback

sys.dont_write_bytecode = True
import rankd_module  # noqa: E402  (beside this file)

PROTOCOL = 2


class Channel:
    """The protocol's lines, on descriptors that are hidden from the user's code."""

    def __init__(self):
        self.lines = os.fdopen(os.dup(0), "r", encoding="utf-8", newline="\n")
        self.answers = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)
        sys.stdin = open(0, "r", closefd=False)
        sys.stdout = open(1, "w", buffering=1, closefd=False)

    def send(self, message):
        self.answers.write(json.dumps(message, allow_nan=False) + "\n")
        self.answers.flush()

    def messages(self):
        for line in self.lines:
            yield json.loads(line)


def load_function(path, name):
    module = rankd_module.load_module(path, "custom_reward_function.path")
    function = getattr(module, name, None)
    if not callable(function):
        raise AttributeError(f"custom_reward_function.name: '{path}' has no function '{name}'")
    return function


def describe(error):
    """The exception, and the last line of code that is not rankd's."""
    what = f"{type(error).__name__}: {error}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename not in (__file__, rankd_module.__file__) and not frame.filename.startswith("<frozen"):
            return f"{what} ({frame.filename}:{frame.lineno}, in {frame.name})"
    return what


def plain(value):
    """The Python value of a scalar of NumPy or PyTorch; other values, arrays too, as they are."""
    try:
        return value.item() if hasattr(value, "item") and not isinstance(value, (int, float)) else value
    except (RuntimeError, TypeError, ValueError):
        return value


def is_finite(number):
    try:
        return math.isfinite(number)
    except OverflowError:  # an int beyond the range of a float
        return False


def as_number(value):
    """A finite float, from what Python and NumPy call numbers; None is None."""
    value = plain(value)
    if value is None:
        return None
    if not isinstance(value, numbers.Real):
        raise TypeError(f"the score is a {type(value).__name__}, expected a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"the score is {number}, expected a finite number")
    return number


def number_answer(item_id, result):
    """The answer to one item from a number or None."""
    score = as_number(result)
    return {"id": item_id, "skip": True} if score is None else {"id": item_id, "score": score}


def verl_answer(item_id, result):
    """The answer to one item from what compute_score returned."""
    if not isinstance(result, dict):
        if isinstance(result, (list, tuple)) and result:  # verl takes the first
            result = result[0]
        return number_answer(item_id, result)
    if "score" not in result:
        raise KeyError("the dict that the function returned has no 'score'")
    answer = {"id": item_id, "score": as_number(result["score"])}
    if answer["score"] is None:
        return {"id": item_id, "skip": True}
    for key, value in result.items():
        if key in ("id", "score", "error", "skip"):
            continue
        value = plain(value)
        if value is None or isinstance(value, (bool, str)):
            answer[str(key)] = value
        elif isinstance(value, numbers.Real) and is_finite(value):
            answer[str(key)] = float(value)
        else:  # rankctl warns that it does not report this member
            answer[str(key)] = [type(value).__name__]
    return answer


def check_arguments(function, given):
    """TypeError when a call with these keyword arguments cannot be made: before the first response, not after it."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return
    try:
        signature.bind(**given)
    except TypeError as error:
        name = getattr(function, "__name__", "the function")
        raise TypeError(f"{name}{signature} cannot be called with {', '.join(given)}: {error}") from None


async def score_lists(call, answer, items, send):
    """Sends the answers to items whose results come from one call: call(items) is a list or an awaitable of one."""
    try:
        results = call(items)
        if inspect.isawaitable(results):
            results = await results
        results = list(results)
        if len(results) != len(items):
            raise ValueError(f"the function returned {len(results)} scores for {len(items)} responses")
    except Exception as error:
        for item in items:
            send({"id": item["id"], "error": describe(error)})
        return
    for item, result in zip(items, results):
        try:
            send(answer(item["id"], result))
        except Exception as error:
            send({"id": item["id"], "error": describe(error)})


class VerlFunction:
    def __init__(self, function, kwargs):
        self.function = function
        self.kwargs = kwargs
        check_arguments(function, self.arguments({"data_source": "", "solution_str": "", "ground_truth": None}))

    def arguments(self, item):
        extra_info = item.get("extra_info")
        if extra_info is None or isinstance(extra_info, dict):
            extra_info = dict(extra_info or {})
            extra_info.setdefault("num_turns", 2)  # a question and an answer
            extra_info.setdefault("rollout_reward_scores", {})
        own = {name: item[name] for name in ("data_source", "solution_str", "ground_truth")}
        return {**own, "extra_info": extra_info, **self.kwargs}

    async def score_item(self, item):
        try:
            result = self.function(**self.arguments(item))
            if inspect.isawaitable(result):
                result = await result
            return verl_answer(item["id"], result)
        except Exception as error:
            return {"id": item["id"], "error": describe(error)}

    async def score(self, items, send):
        async def one(item):
            send(await self.score_item(item))

        if inspect.iscoroutinefunction(self.function):
            await asyncio.gather(*(one(item) for item in items))
        else:
            for item in items:
                await one(item)


class VerlBatchFunction(VerlFunction):
    """The function of verl's reward manager "batch": from lists to a list."""

    PLURALS = {name: name + "s" for name in ("data_source", "solution_str", "ground_truth", "extra_info")}

    def __init__(self, function, kwargs):
        self.function = function
        self.kwargs = kwargs
        check_arguments(function, {**{name: [] for name in self.PLURALS.values()}, **kwargs})

    def call(self, items):
        rows = [self.arguments(item) for item in items]
        lists = {plural: [row[name] for row in rows] for name, plural in self.PLURALS.items()}
        return self.function(**lists, **self.kwargs)

    async def score(self, items, send):
        await score_lists(self.call, verl_answer, items, send)


class TrlFunction:
    """A function from lists to a list. Columns are the members of the data rows apart from the prompt, and of verl's
    rows also the ground truth and the members of extra_info, where no member of the row has their name."""

    OWN = ("prompt", "completion", "completion_ids")  # columns that TRL does not pass

    def __init__(self, function, kwargs):
        self.function = function
        self.kwargs = kwargs
        parameters = inspect.signature(function).parameters.values()
        self.takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters)
        self.names = {p.name for p in parameters}

    @staticmethod
    def completion_of(item):
        """The response in the form of its prompt."""
        is_chat = isinstance(item["prompt"], list)
        return [{"role": "assistant", "content": item["solution_str"]}] if is_chat else item["solution_str"]

    @staticmethod
    def row_of(item):
        own = {"data_source": item["data_source"], "ground_truth": item["ground_truth"]}
        extra_info = item.get("extra_info")
        extra = extra_info if isinstance(extra_info, dict) else {}
        return {**extra, **own, **(item.get("columns") or {})}

    def columns(self, items):
        columns = {
            "prompts": [item["prompt"] for item in items],
            "completions": [self.completion_of(item) for item in items],
            "completion_ids": [item.get("completion_ids") for item in items],
        }
        rows = [self.row_of(item) for item in items]
        for name in dict.fromkeys(name for row in rows for name in row if name not in self.OWN):
            columns.setdefault(name, [row.get(name) for row in rows])
        columns.update(self.kwargs)
        if self.takes_all:
            return columns
        return {name: column for name, column in columns.items() if name in self.names}

    async def score(self, items, send):
        await score_lists(lambda items: self.function(**self.columns(items)), number_answer, items, send)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True, help="file of the function, or pkg://MODULE")
    parser.add_argument("--name", default="compute_score", help="name of the function")
    parser.add_argument("--style", choices=("verl", "verl_batch", "trl"), default="verl")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    channel = Channel()
    styles = {"verl": VerlFunction, "verl_batch": VerlBatchFunction, "trl": TrlFunction}
    messages = channel.messages()
    hello = next(messages, None)
    if hello is None:
        return 0
    try:
        if hello.get("hello") != PROTOCOL:
            raise ValueError(f"rankctl speaks protocol {hello.get('hello')}, this program protocol {PROTOCOL}")
        scorer = styles[arguments.style](load_function(arguments.path, arguments.name), hello.get("kwargs", {}))
    except BaseException as error:  # a module may even call sys.exit
        channel.send({"hello": PROTOCOL, "error": describe(error)})
        return 1
    channel.send({"hello": PROTOCOL, "name": f"{arguments.path}:{arguments.name}"})
    loop = asyncio.new_event_loop()
    for message in messages:
        loop.run_until_complete(scorer.score(message["items"], channel.send))
    return 0


if __name__ == "__main__":
    sys.exit(main())
