"""Events of daemons as they happen."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional

import grpc

from rankd._worker import Worker
from rankd.batch import from_scalar
from rankd.v1 import worker_pb2 as pb

_WAITING = 1024  # unread events; beyond it the daemons keep them, and report gaps


@dataclass(frozen=True)
class Event:
    """An event of a daemon (docs/observe.md): kinds state, lease, method_start, method_end, progress, metrics, log
    and gap. The first one of every daemon has the kind "state" and its status. Kind "lost": the stream of that
    daemon has ended, `message` has the reason."""

    rank: int
    kind: str
    message: str
    id: int = 0  # counts events per incarnation; 0 for gap, lost and the first one
    unix_ns: int = 0
    fields: Dict[str, Any] = field(default_factory=dict)
    status: Optional["pb.WorkerStatus"] = None


class _Reader:
    """Reads one daemon's stream on a thread of its own, and posts None at its end."""

    def __init__(self, worker: Worker, request: "pb.WatchRequest", events: "queue.Queue[Optional[Event]]") -> None:
        self._worker = worker
        self._events = events
        self._is_closed = threading.Event()
        self._stream = worker.control.Watch(request, metadata=worker.metadata)
        threading.Thread(target=self._read, daemon=True, name=f"rankd-watch-{worker.rank}").start()

    def close(self) -> None:
        self._is_closed.set()
        self._stream.cancel()

    def _post(self, event: Optional[Event]) -> None:
        while not self._is_closed.is_set():
            try:
                self._events.put(event, timeout=0.1)
                return
            except queue.Full:
                pass

    def _read(self) -> None:
        try:
            for event in self._stream:
                self._post(Event(self._worker.rank, event.kind, event.message, event.id, event.unix_ns,
                                 {entry.key: from_scalar(entry.value) for entry in event.field},
                                 event.status if event.HasField("status") else None))
        except grpc.RpcError as error:
            self._post(Event(self._worker.rank, "lost", str(self._worker.error(error))))
        self._post(None)


def watch(workers: List[Worker], request: "pb.WatchRequest") -> Iterator[Event]:
    """The events of several daemons in the order of arrival. Ends when all streams have ended; closing the
    generator ends them."""
    events: "queue.Queue[Optional[Event]]" = queue.Queue(_WAITING)
    readers = [_Reader(worker, request, events) for worker in workers]
    num_open = len(readers)
    try:
        while num_open:
            event = events.get()
            if event is None:
                num_open -= 1
            else:
                yield event
    finally:
        for reader in readers:
            reader.close()
