"""One daemon: its connections and the fence of its lease."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar, Union

import grpc

from rankd._hosts import is_socket, number_of
from rankd.errors import RankdError, from_rpc
from rankd.v1 import common_pb2, worker_pb2_grpc

T = TypeVar("T")
CONTROL_TIMEOUT_S = 10.0
_MESSAGE_BYTES = (4 << 20) + (64 << 10)
_OPTIONS: Sequence[Tuple[str, Any]] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # one connection per channel: control calls do not wait behind chunks
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 5000),  # detects a stopped process or a lost host after 8 s
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
)


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files. `ca` has the authorities that daemons' certificates are verified with; `cert` and
    `key` are the client's own, for mutual TLS. `server_name` replaces the host of the address when names are
    verified. Unix sockets do not use TLS."""

    ca: str
    cert: Optional[str] = None
    key: Optional[str] = None
    server_name: Optional[str] = None

    @classmethod
    def folder(cls, path: Union[str, "os.PathLike[str]"], client: str = "rankctl",
               server_name: Optional[str] = None) -> "Tls":
        """The files of `rankctl certs init --out path`, with the certificate of `client`: mutual TLS."""
        ca, cert, key = (os.path.join(path, name) for name in ("ca.crt", f"{client}.crt", f"{client}.key"))
        return cls(ca, cert, key, server_name)

    @classmethod
    def environment(cls) -> Optional["Tls"]:
        """RANKCTL_TLS_CA, RANKCTL_TLS_CERT and RANKCTL_TLS_KEY, as in rankctl; None without the first."""
        ca, cert, key = (os.environ.get(f"RANKCTL_TLS_{name}") for name in ("CA", "CERT", "KEY"))
        return cls(ca, cert, key) if ca else None

    def credentials(self) -> grpc.ChannelCredentials:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key: expected both or neither")
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))


def _read(path: Optional[str]) -> Optional[bytes]:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


class Worker:
    """A daemon of the group; rank is its index in the list of hosts."""

    def __init__(self, rank: int, address: str, token: Optional[str], tls: Optional[Tls]) -> None:
        self.rank = rank
        self.address = address
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.fence = common_pb2.Fence()
        self.incarnation = 0
        self.next_seq = 1  # of the next call to be committed; owned by the call whose turn it is
        self.renewed_s = 0.0  # when the last renewal was acknowledged; monotonic clock
        options = list(_OPTIONS)
        if is_socket(address):
            tls = None
        host, colon, port = address.rpartition(":")
        target = f"{number_of(host)}{colon}{port}"
        if tls and tls.server_name:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
        elif target != address:
            options.append(("grpc.default_authority", address))  # the name that the certificate must have
        self._channels = [grpc.secure_channel(target, tls.credentials(), options) if tls
                          else grpc.insecure_channel(target, options) for _ in range(2)]
        self.data = worker_pb2_grpc.WorkerStub(self._channels[0])
        self.control = worker_pb2_grpc.WorkerStub(self._channels[1])

    def error(self, error: grpc.RpcError) -> RankdError:
        return from_rpc(error, self.rank, self.address)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


def root_of(errors: Sequence[RankdError]) -> RankdError:
    """The probable root cause among errors in the order of their arrival: a lost daemon first, then a failure on
    the rank itself, then ranks that only waited, then cancelled calls."""

    def blame(error: RankdError) -> int:
        if error.is_lost:
            return 0
        if error.code == "CANCELLED" or error.reason == "COMM_ABORTED":
            return 4
        if error.code == "ABORTED":
            return 3 if error.reason == "PEER_LOST" else 2
        return 2 if error.code == "DEADLINE_EXCEEDED" else 1

    return min(errors, key=blame)


def call_all(workers: Sequence[Worker], method: str, requests: Callable[[Worker], Any], timeout_s: float,
             all_or_none: bool = False) -> List[Any]:
    """One unary RPC on several daemons at once. Raises the root cause; with all_or_none, a failure ends the
    others a second later."""
    calls = {worker.rank: getattr(worker.control, method).future(requests(worker), timeout=timeout_s,
                                                                 metadata=worker.metadata)
             for worker in workers}
    failed = threading.Event()
    timers: List[threading.Timer] = []

    def on_done(call: Any) -> None:
        if call.code() != grpc.StatusCode.OK and all_or_none and not failed.is_set():
            failed.set()
            for other in calls.values():
                timers.append(threading.Timer(1.0, other.cancel))
                timers[-1].start()

    for call in calls.values():
        call.add_done_callback(on_done)
    replies: List[Any] = []
    errors: List[RankdError] = []
    for worker in workers:
        try:
            replies.append(calls[worker.rank].result())
        except grpc.FutureCancelledError:
            errors.append(RankdError("CANCELLED", "", "another rank failed", worker.rank, worker.address))
        except grpc.RpcError as error:
            errors.append(worker.error(error))
    for timer in timers:
        timer.cancel()
    if errors:
        raise root_of(errors)
    return replies
