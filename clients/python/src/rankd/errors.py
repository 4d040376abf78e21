"""The exception of failed calls."""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

import grpc


class RankdError(Exception):
    """A rejection or failure by a daemon, or by the client itself.

    code     gRPC's name of the status, "FAILED_PRECONDITION"
    reason   machine-readable, "LEASE_HELD"; "" where there is none (docs/rpc.md, "Errors")
    rank     of the daemon where the failure began; None for an error of the client
    """

    def __init__(self, code: str, reason: str, message: str, rank: Optional[int] = None,
                 address: Optional[str] = None) -> None:
        where = "" if rank is None else f"worker {rank} ({address}): "
        super().__init__(f"{where}{code}{' ' + reason if reason else ''}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.rank = rank
        self.address = address
        self.is_lost = False  # the connection ended without a response of the daemon


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7


def _texts(data: bytes) -> Iterator[Tuple[int, bytes]]:
    """(number, content) of the length-delimited fields of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 2:
            size, at = _varint(data, at)
            yield key >> 3, data[at:at + size]
            at += size
        elif key & 7 == 0:
            at = _varint(data, at)[1]
        else:
            at += 8 if key & 7 == 1 else 4


def _reason_of(details: bytes) -> str:
    """The reason of the google.rpc.ErrorInfo in a google.rpc.Status. Decoded here, so that neither grpcio-status
    nor googleapis-common-protos is needed."""
    try:
        for field, content in _texts(details):
            if field != 3:
                continue
            detail = dict(_texts(content))
            if detail.get(1, b"").endswith(b"google.rpc.ErrorInfo"):
                return dict(_texts(detail.get(2, b""))).get(1, b"").decode()
    except (IndexError, UnicodeDecodeError):
        pass
    return ""


def from_rpc(error: grpc.RpcError, rank: int, address: str) -> RankdError:
    """The error of an RPC to that daemon."""
    trailing = error.trailing_metadata() or ()
    details = next((value for key, value in trailing if key == "grpc-status-details-bin"), b"")
    reason = _reason_of(details)
    code = error.code().name
    result = RankdError(code, reason, error.details() or "", rank, address)
    result.is_lost = code == "UNAVAILABLE" and not reason
    return result
