#!/usr/bin/env python3
"""generate_methods.py < TABLE > methods.py: the typed methods of the Python client from the method table, which
`rankctl methods --output json` prints."""

import json
import sys
import textwrap

TYPES = {"BOOL": "bool", "INT": "int", "REAL": "float", "STRING": "str", "JSON": "Any"}
ROLES = ("actor", "rollout", "ref", "critic", "reward", "teacher")
HEAD = '''"""The methods of the daemons by role. Generated from the method table; do not edit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, TypedDict

from rankd.batch import Column
from rankd.plan import Plan

if TYPE_CHECKING:
    from rankd._call import CallFuture, Progress, Result
    from rankd.client import Client
'''


def camel(name):
    return "".join(part.capitalize() for part in name.split("_"))


def option_type(option):
    kind, _, default = option["type"].partition(" = ")
    name = TYPES[kind]
    return f"Optional[{name}]" if default == "null" and name != "Any" else name


def options_class(method):
    lines = [f"{camel(method['name'])}Options = TypedDict(", f"    \"{camel(method['name'])}Options\", {{"]
    for option in method["options"]:
        lines.append(f"        {json.dumps(option['name'])}: {option_type(option)!r},".replace("'", '"'))
    return "\n".join(lines + ["    }, total=False)"])


def bullet(name, kind, doc, width):
    first = f"    {name}  {kind}"
    return textwrap.wrap(doc, 110, initial_indent=f"{first.ljust(width)}  ", subsequent_indent=" " * 12)


def table(title, rows):
    if not rows:
        return []
    width = min(max(len(f"    {name}  {kind}") for name, kind, _ in rows), 60)
    lines = ["", f"{title}:"]
    for name, kind, doc in rows:
        lines += bullet(name, kind, doc, width)
    return lines


def docstring(method):
    lines = [f"{method['doc'][0].upper()}{method['doc'][1:]}.", "", f"Dispatch {method['dispatch']}."]
    lines += table("Columns", [(c["name"], f"{c['dtype']} [{c['dims']}]{'' if c['required'] else ', optional'}", c["doc"])
                               for c in method["input"]])
    lines += table("Returns", [(c["name"], f"{c['dtype']} [{c['dims']}]", c["doc"]) for c in method["output"]])
    lines += table("Options", [(o["name"], o["type"] + (", required" if o["required"] else ""), o["doc"])
                               for o in method["options"]])
    text = "\n".join(f"        {line}".rstrip() for line in lines)
    return '        """' + text.lstrip().replace("\\", "\\\\") + '\n        """'


def parameters(method):
    result = ["self"]
    required = any(option["required"] for option in method["options"])
    if method["input"]:
        result.append("batch: Mapping[str, Column]")
    if method["plan"]:
        result.append("plan: Plan")
    if method["options"]:
        kind = f"{camel(method['name'])}Options"
        result.append(f"options: {kind}" if required else f"options: Optional[{kind}] = None")
    result.append("*, timeout_s: float = 0.0, want: Sequence[str] = (), on_progress: Optional[Progress] = None")
    return ", ".join(result)


def arguments(method):
    batch = "batch" if method["input"] else "None"
    options = "options" if method["options"] else "None"
    plan = "plan" if method["plan"] else "None"
    return (f"f\"{{self._role}}.{method['name']}\", {batch}, {options}, plan={plan}, timeout_s=timeout_s, want=want, "
            "on_progress=on_progress")


def functions(method):
    doc = docstring(method)
    return "\n".join([
        f"    def {method['name']}({parameters(method)}) -> Result:", doc,
        f"        return self._client.call({arguments(method)})", "",
        f"    def {method['name']}_async({parameters(method)}) -> CallFuture:",
        f"        \"\"\"Starts {method['name']}() and returns while it goes on.\"\"\"",
        f"        return self._client.start({arguments(method)})", ""])


def main():
    methods = json.load(sys.stdin)["methods"]
    parts = [HEAD]
    parts += [options_class(method) for method in methods if method["options"]]
    parts.append("class _Role:\n    def __init__(self, client: Client, role: str) -> None:\n"
                 "        self._client = client\n        self._role = role\n")
    shared = [method for method in methods if set(ROLES) <= set(method["roles"])]
    parts.append("class _AnyRole(_Role):\n    \"\"\"What every role has.\"\"\"\n\n" + "\n".join(map(functions, shared)))
    for role in ROLES:
        own = [method for method in methods if role in method["roles"] and method not in shared]
        parts.append(f"class {camel(role)}(_AnyRole):\n    \"\"\"Methods of the role {role}.\"\"\"\n\n"
                     + "\n".join(map(functions, own)))
    print("\n\n".join(part.rstrip("\n") + "\n" for part in parts), end="")


main()
