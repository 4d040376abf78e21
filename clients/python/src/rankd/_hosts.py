"""Lists of daemon addresses, in the syntax of rankctl --hosts (docs/deploy.md)."""

from __future__ import annotations

import os
import re
import socket
from typing import Any, Iterator, List, Optional, Tuple

from rankd.errors import RankdError

DEFAULT_PORT = 7000
HOSTS_MAX = 4096
_BRACKETS_MAX = 8
_DIGITS_MAX = 18
_SOCKET_NAME_BYTES_MAX = 107
_EXPECTED = ("expected HOST[:PORT], [IPV6][:PORT], unix:PATH, unix-abstract:NAME, dns:NAME[:PORT] or slurm:[PORT]")


def is_socket(address: str) -> bool:
    """Whether it is a Unix socket; other addresses use TLS."""
    return address.startswith(("unix:", "unix-abstract:"))


def number_of(host: str) -> str:
    """The number of localhost, which no resolver is asked for: a new root file system has no /etc/hosts. Every other
    host as it is."""
    return "127.0.0.1" if host.lower() in ("localhost", "localhost.") else host


def parse_hosts(hosts: Any) -> List[str]:
    """Addresses in rank order: of a list, each of whose items may be a term, or of text with commas and @FILE."""
    if hosts is None:
        hosts = os.environ.get("RANKCTL_HOSTS")
        if hosts is None:
            raise ValueError("no daemons given; expected hosts or RANKCTL_HOSTS")
    addresses: List[str] = []
    for part in split_terms(hosts) if isinstance(hosts, str) else map(str, hosts):
        if part.startswith("@"):
            _append_file(addresses, part[1:])
        else:
            _append_term(addresses, part)
    if not addresses:
        raise ValueError(f"the list of daemons is empty; {_EXPECTED}")
    return addresses


# --- ranges ---


def split_terms(text: str) -> Iterator[str]:
    """The parts between commas; inside brackets a comma belongs to a range."""
    begin, inside = 0, False
    for i, c in enumerate(text):
        if c == "," and not (inside and text[begin] != "@"):
            yield text[begin:i]
            begin, inside = i + 1, False
        else:
            inside = c == "[" or (inside and c != "]")
    yield text[begin:]


class _Pattern:
    """rack[1-2]n[01-04,7]: texts and, between them, the numbers of each bracket as written."""

    def __init__(self, text: str, limit: int) -> None:
        self.text = text
        self.limit = limit
        self.at = 0
        self.texts: List[str] = []
        self.numbers: List[List[str]] = []
        begin = 0
        while self.at < len(text):
            c = text[self.at]
            self.at += 1
            if c == "]":
                raise self._bad(self.at - 1, "']' has no '['")
            if c == "[":
                if len(self.numbers) == _BRACKETS_MAX:
                    raise self._bad(self.at - 1, f"more than {_BRACKETS_MAX} brackets")
                self.texts.append(text[begin:self.at - 1])
                self.numbers.append(self._bracket())
                begin = self.at
        self.texts.append(text[begin:])

    def _bad(self, at: int, what: str) -> ValueError:
        return ValueError(f"host list '{self.text}', character {at + 1}: {what}")

    def _number(self) -> str:
        begin = self.at
        found = re.match(r"[0-9]*", self.text[begin:])
        digits = found.group() if found else ""
        if not digits:
            raise self._bad(begin, "'[' inside brackets" if self.text.startswith("[", begin) else "expected a number")
        if len(digits) > _DIGITS_MAX:
            raise self._bad(begin, f"the number has more than {_DIGITS_MAX} digits")
        self.at += len(digits)
        return digits

    def _bracket(self) -> List[str]:
        opened = self.at - 1
        numbers: List[str] = []
        while True:
            begin = self.at
            first = last = self._number()
            if self.text.startswith("-", self.at):
                self.at += 1
                last = self._number()
            if int(last) < int(first):
                raise self._bad(begin, "the range ends below its first number")
            if int(last) - int(first) >= self.limit - len(numbers):
                raise self._bad(begin, f"the range has more than {self.limit} hosts")
            numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
            if self.at == len(self.text):
                raise self._bad(opened, "'[' has no ']'")
            c = self.text[self.at]
            if c not in ",]":
                raise self._bad(self.at, "expected '-', ',' or ']'")
            self.at += 1
            if c == "]":
                return numbers

    def names(self) -> Iterator[str]:
        """The last bracket changes fastest, then the first, the second and so on, as `scontrol show hostnames`
        does."""
        total = 1
        for numbers in self.numbers:
            total *= len(numbers)
            if total > self.limit:
                raise ValueError(f"host list '{self.text}' names more than {self.limit} hosts")
        order = list(range(len(self.numbers)))
        order = order[-1:] + order[:-1]
        for i in range(total):
            picked = [""] * len(self.numbers)
            for which in order:
                i, index = divmod(i, len(self.numbers[which]))
                picked[which] = self.numbers[which][index]
            yield "".join(text + number for text, number in zip(self.texts, picked + [""]))


def expand(term: str, limit: int = HOSTS_MAX) -> Iterator[str]:
    """The names that a term with ranges expands to."""
    return _Pattern(term, limit).names()


# --- one address ---


def _port(text: str, address: str) -> int:
    if not re.fullmatch(r"-?[0-9]+", text):
        raise ValueError(f"address '{address}': port '{text}' is not a number; {_EXPECTED}")
    if not 1 <= int(text) <= 65535:
        raise ValueError(f"address '{address}': port {text} is not in 1..65535")
    return int(text)


def _check_socket(address: str) -> None:
    name = address.partition(":")[2].encode()
    if not name:
        raise ValueError(f"address '{address}' has no socket name; {_EXPECTED}")
    if len(name) > _SOCKET_NAME_BYTES_MAX:
        raise ValueError(f"address '{address}': socket name of {len(name)} bytes, the system allows "
                         f"{_SOCKET_NAME_BYTES_MAX}")


def _check_tcp(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise ValueError(f"address '{address}': {_EXPECTED}")
    _port(port, address)
    if host.startswith("["):
        if not host.endswith("]"):
            raise ValueError(f"address '{address}': {_EXPECTED}")
        return
    for c in host:
        if c == "/":
            raise ValueError(f"address '{address}': '/' is not part of a host name; a socket is unix:PATH, a file with "
                             "addresses @FILE")
        if not (c.isascii() and c.isalnum()) and c not in "-._":
            raise ValueError(f"address '{address}': '{c}' is not part of a host name; {_EXPECTED}")


def _append_address(addresses: List[str], address: str) -> None:
    if len(addresses) == HOSTS_MAX:
        raise ValueError(f"more than {HOSTS_MAX} addresses")
    _check_socket(address) if is_socket(address) else _check_tcp(address)
    if address in addresses:
        raise ValueError(f"address '{address}' is listed twice (ranks {addresses.index(address)} and "
                         f"{len(addresses)})")
    addresses.append(address)


# --- one term, which may stand for several ---


def _split_port(text: str) -> Tuple[str, Optional[str], bool]:
    """Host, port or None, and whether the host is the literal of an IPv6 address, a bracket with colons."""
    close = text.find("]") if text.startswith("[") else -1
    if ":" in text[:max(close, 0)]:
        rest = text[close + 1:]
        if rest and not rest.startswith(":"):
            raise ValueError(f"address '{text}': {_EXPECTED}")
        return text[:close + 1], rest[1:] if rest else None, True
    colon, inside = -1, False
    for i, c in enumerate(text):
        inside = c == "[" or (inside and c != "]")
        if c == ":" and not inside:
            colon = i
    return (text, None, False) if colon < 0 else (text[:colon], text[colon + 1:], False)


def _append_tcp(addresses: List[str], text: str) -> None:
    host, port, is_literal = _split_port(text)
    for name in [host] if is_literal else expand(host):
        for number in expand(str(DEFAULT_PORT) if port is None else port):
            _append_address(addresses, f"{name}:{number}")


def _append_term(addresses: List[str], text: str) -> None:
    text = text.strip()
    if any(c.isspace() or not c.isprintable() for c in text):
        raise ValueError(f"address '{text}' contains white space; {_EXPECTED}")
    if not text:
        return
    if is_socket(text):
        found = expand(text)
    elif text.startswith("slurm:"):
        found = iter(_slurm(text[len("slurm:"):]))
    elif text.startswith("dns:"):
        found = iter(_dns(text[len("dns:"):]))
    else:
        _append_tcp(addresses, text)
        return
    for address in found:
        _append_address(addresses, address)


def _append_file(addresses: List[str], path: str) -> None:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                for term in split_terms(line.partition("#")[0]):
                    _append_term(addresses, term)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None


# --- names in DNS, and the nodes of a Slurm job ---


def _dns(text: str) -> List[str]:
    """Every address that the name resolves to, IPv4 before IPv6, as numbers."""
    address = f"dns:{text}"
    name, colon, rest = text.partition(":")
    if not name or "[" in name:
        raise ValueError(f"address '{address}': expected dns:NAME or dns:NAME:PORT, without ranges")
    port = _port(rest, address) if colon else DEFAULT_PORT
    try:
        found = socket.getaddrinfo(number_of(name), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RankdError("UNAVAILABLE", "", f"dns:{name}: cannot resolve the name: {error.strerror}") from None
    return sorted_addresses([(family, str(where[0])) for family, _, _, _, where in found], port)


def sorted_addresses(found: List[Tuple[int, str]], port: int) -> List[str]:
    """One address of each family and text, without repetitions."""
    packed = {(family == socket.AF_INET6, socket.inet_pton(family, text.partition("%")[0]))
              for family, text in found if family in (socket.AF_INET, socket.AF_INET6)}
    texts = [f"[{socket.inet_ntop(socket.AF_INET6, data)}]" if is_v6 else socket.inet_ntop(socket.AF_INET, data)
             for is_v6, data in sorted(packed)]
    return [f"{text}:{port}" for text in texts]


def _slurm(ports: str) -> List[str]:
    """The i-th daemon of a node on PORT + i."""
    first, colon, per_node = ports.partition(":")
    port = _port(first, f"slurm:{ports}") if first else DEFAULT_PORT
    nodes = _slurm_nodes(ports)
    counts = _slurm_counts(len(nodes), per_node if colon else None)
    return [f"{node}:{port + i}" for node, count in zip(nodes, counts) for i in range(count)]


def _slurm_nodes(ports: str) -> List[str]:
    variable = "SLURM_JOB_NODELIST" if "SLURM_JOB_NODELIST" in os.environ else "SLURM_NODELIST"
    text = os.environ.get(variable, "")
    if not text:
        raise ValueError(f"slurm:{ports}: SLURM_JOB_NODELIST is not set; expected to run in a Slurm job (sbatch, salloc); "
                         "outside of a job list the daemons or use @FILE")
    try:
        nodes = [name for term in split_terms(text) if term for name in expand(term)]
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None
    if len(nodes) > HOSTS_MAX:
        raise ValueError(f"{variable}: more than {HOSTS_MAX} nodes")
    return nodes


def _slurm_counts(num_nodes: int, per_node: Optional[str]) -> List[int]:
    """Daemons of each node. SLURM_TASKS_PER_NODE describes nodes that differ, but in a step it is the step's,
    for example 1 for a program started by srun."""
    each, tasks = os.environ.get("SLURM_NTASKS_PER_NODE"), os.environ.get("SLURM_TASKS_PER_NODE")
    if per_node is not None:
        return [_slurm_count("slurm:PORT:", per_node)] * num_nodes
    if tasks is None or (each is not None and "SLURM_STEP_ID" in os.environ):
        return [_slurm_count("SLURM_NTASKS_PER_NODE=", "1" if each is None else each)] * num_nodes

    def bad(what: str) -> ValueError:
        return ValueError(f"SLURM_TASKS_PER_NODE={tasks}: {what}; to set the daemons of a node use slurm:PORT:N")

    counts: List[int] = []
    for part in tasks.split(","):
        found = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        count, repeat = (int(found.group(1)), int(found.group(2) or 1)) if found else (0, 0)
        if not 1 <= count <= HOSTS_MAX or repeat < 1:
            raise bad("expected numbers of tasks such as 8(x2),4")
        if repeat > num_nodes - len(counts):
            raise bad("it counts more nodes than SLURM_JOB_NODELIST has")
        counts += [count] * repeat
    if len(counts) != num_nodes:
        raise bad("it counts fewer nodes than SLURM_JOB_NODELIST has")
    return counts


def _slurm_count(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or not 1 <= int(text) <= HOSTS_MAX:
        raise ValueError(f"{name}{text}: expected the number of daemons on a node, from 1 to {HOSTS_MAX}")
    return int(text)
