#!/usr/bin/env python3
"""generate_modes.py < modes.def > modes.py: the dispatch modes of the Python client from the rows of the C code."""

import re
import sys

HEAD = '''"""The dispatch modes, rows of dispatch/modes.def. Generated; do not edit."""

from typing import Dict, Tuple

# name: payload, pads, receives, chunk, collects
ROWS: Dict[str, Tuple[str, bool, Tuple[str, ...], Tuple[str, ...], Tuple[str, ...]]] = {'''


def coordinates(text):
    return tuple(name.lower() for name in text.split(" | ") if name != "NONE")


def main():
    rows = re.findall(r"X\((\w+), (\w+), (true|false), ([\w |]+), ([\w |]+), ([\w |]+)\)", sys.stdin.read())
    if not rows:
        sys.exit("generate_modes.py: no row X(name, payload, pads, receives, chunk, collects)")
    print(HEAD)
    for name, payload, pads, *masks in rows:
        print(f"    {name!r}: {(payload.lower(), pads == 'true', *map(coordinates, masks))},")
    print("}")


main()
