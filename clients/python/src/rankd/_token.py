"""Tokens that clients send to daemons."""

from __future__ import annotations

import os
from typing import Optional

from rankd._hosts import number_of

_ROOT = "/run/rankd"  # of the runtime directories of this host's daemons


def read_token(path: str) -> str:
    """The first line of the file, TOKEN or, as in a daemon's token file, ROLE:TOKEN."""
    with open(path, encoding="utf-8") as file:
        line = file.readline().strip()
    role, _, token = line.partition(":")
    token = token if role in ("admin", "driver", "viewer") else line
    if not token:
        raise ValueError(f"token file {path!r} is empty")
    return token


def find_token(address: str, root: str = _ROOT) -> Optional[str]:
    """Of a daemon that has made its token: the file "token" beside its Unix socket, else in the directory below root
    whose file "address" has this address. None: there is none, or this user must not read it."""
    host, colon, port = address.rpartition(":")
    folders = [os.path.dirname(address[len("unix:"):])] if address.startswith("unix:") else []
    try:
        folders += [entry.path for entry in os.scandir(root)
                    if _line(os.path.join(entry.path, "address")) == f"{number_of(host)}{colon}{port}"]
    except OSError:
        pass
    for folder in folders:
        path = os.path.join(folder, "token")
        if os.access(path, os.R_OK):
            return read_token(path)
    return None


def _line(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline(256).strip()
    except (OSError, ValueError):
        return None
