"""One call on the group: offer it to all ranks, commit when all have accepted, collect the results."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import grpc

from rankd._worker import Worker, root_of
from rankd.batch import Assembler, Batch, concat, encode, entries
from rankd.dispatch import Dispatch
from rankd.errors import RankdError
from rankd.v1 import common_pb2, worker_pb2 as pb

_FAILURE_GRACE_S = 0.5  # time for the other ranks to report errors, before they are aborted
_CANCEL_GRACE_S = 5.0  # time for ranks to reach a point where they can stop
_GIVE_UP_S = 9.0  # time limit after an abort
_WITHDRAW_S = 3.0
_ACCEPT_TIMEOUT_S = 60.0
_RPC_MARGIN_S = 30.0  # the daemon's watchdog ends calls; the RPC's deadline is later
_HEADER_BYTES = 1 << 20
_QUEUED_CALLS = 8  # queue limit of a daemon

Progress = Callable[[int, "common_pb2.Progress"], None]

if TYPE_CHECKING:
    _Future = concurrent.futures.Future["Result"]
else:
    _Future = concurrent.futures.Future


#: By name; None is a number that is not finite.
Metrics = Dict[str, Optional[float]]


@dataclass
class Result:
    """Result of a call. `batch` has the rows of the ranks that collect, in the order of the input; it is empty
    where the method returns no columns; `outputs` what each of these ranks returned, with its meta; `metrics`
    the metrics of all ranks merged (docs/rpc.md, "Metrics"), None where one is not finite."""

    batch: Batch = field(default_factory=Batch)
    outputs: List[Batch] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)


class CallFuture(_Future):
    """A call in progress. concurrent.futures.wait() and as_completed() take futures of several groups."""

    def __init__(self, call: "Call") -> None:
        super().__init__()
        self._call = call

    def cancel(self, reason: str = "by the driver") -> bool:
        """Asks the daemons to stop the call. It ends with RankdError CANCELLED unless it completes first; the group
        stays usable. False if it has already ended."""
        if self.done():
            return False
        self._call.cancel(reason)
        return True


def merge_metrics(results: Mapping[int, "pb.ExecuteResult"], collected: List[int]) -> Dict[str, Optional[float]]:
    """max and min are taken over all ranks; sum, mean and last over the ranks that collect."""
    values: Dict[str, Tuple[str, List[float]]] = {}
    for rank in sorted(results):
        for metric in results[rank].metric:
            if rank in collected or metric.reduce in ("max", "min"):
                values.setdefault(metric.name, (metric.reduce, []))[1].append(metric.value)
    merged: Dict[str, Optional[float]] = {}
    for name, (reduce, parts) in values.items():
        if not all(abs(part) < float("inf") for part in parts):
            merged[name] = None
        elif reduce in ("max", "min"):
            merged[name] = max(parts) if reduce == "max" else min(parts)
        elif reduce == "last":
            merged[name] = parts[-1]
        else:
            merged[name] = sum(parts) / (1 if reduce == "sum" else len(parts))
    return merged


class _Stream:
    """The call on one daemon. A thread reads the responses and posts events as (rank, what, content)."""

    def __init__(self, worker: Worker, header: "pb.ExecuteHeader", chunks: List["pb.ExecuteRequest"],
                 timeout_s: Optional[float], events: "queue.Queue[Tuple[_Stream, str, Any]]") -> None:
        self.worker = worker
        self.is_done = False
        self.result: Optional["pb.ExecuteResult"] = None
        self.output: Optional[Batch] = None
        self._events = events
        self._outgoing: "queue.Queue[Optional[pb.ExecuteRequest]]" = queue.Queue()
        self._outgoing.put(pb.ExecuteRequest(header=header))
        for chunk in chunks:
            self._outgoing.put(chunk)
        self._call = worker.data.Execute(self._requests(), timeout=timeout_s, metadata=worker.metadata)
        threading.Thread(target=self._read, daemon=True, name=f"rankd-call-{worker.rank}").start()

    def _requests(self) -> Iterator["pb.ExecuteRequest"]:
        while True:
            request = self._outgoing.get()
            if request is None:
                return
            yield request

    def commit(self) -> None:
        self._outgoing.put(pb.ExecuteRequest(commit=pb.Commit()))

    def cancel(self, reason: str) -> None:
        self._outgoing.put(pb.ExecuteRequest(cancel=pb.CancelExecute(reason=reason)))

    def abandon(self) -> None:
        self._call.cancel()

    def _read(self) -> None:
        assembler: Optional[Assembler] = None
        try:
            for answer in self._call:
                kind = answer.WhichOneof("m")
                if kind == "accepted":
                    self._events.put((self, "accepted", answer.accepted.plan_hash))
                elif kind == "progress":
                    self._events.put((self, "progress", answer.progress))
                elif kind == "result" and assembler is None:
                    self.result = answer.result
                    assembler = Assembler(answer.result.output)
                elif kind == "chunk" and assembler is not None:
                    assembler.add(answer.chunk.tensor, answer.chunk.offset, answer.chunk.data)
                else:
                    raise RankdError("INTERNAL", "", f"the daemon sent {kind} out of place")
            if assembler is None:
                raise RankdError("INTERNAL", "", "the daemon ended the call without a result")
            self.output = assembler.finish()
            self._events.put((self, "done", None))
        except grpc.RpcError as error:
            self._events.put((self, "error", self.worker.error(error)))
        except Exception as error:  # pylint: disable=broad-except
            self._call.cancel()
            self._events.put((self, "error", error))
        finally:
            self._outgoing.put(None)


class Turns:
    """Sends calls on the same ranks to the daemons in the order of their starts."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: List["Call"] = []

    def enter(self, call: "Call") -> None:
        with self._changed:
            self._calls.append(call)

    def _is_ready(self, call: "Call") -> bool:
        ahead = self._calls[:self._calls.index(call)]
        for rank in call.ranks:
            others = [other for other in ahead if rank in other.ranks]
            if len(others) >= _QUEUED_CALLS or any(not other.is_offered for other in others):
                return False
        return True

    def wait(self, call: "Call") -> bool:
        """Whether it had to wait. Returns early when the call is cancelled."""
        with self._changed:
            had_to_wait = not self._is_ready(call)
            self._changed.wait_for(lambda: self._is_ready(call) or call.cancel_reason is not None)
            return had_to_wait

    def offered(self, call: "Call") -> None:
        with self._changed:
            call.is_offered = True
            self._changed.notify_all()

    def leave(self, call: "Call") -> None:
        with self._changed:
            self._calls.remove(call)
            self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def count(self) -> int:
        with self._changed:
            return len(self._calls)


class Call:
    """A call, created and checked on the caller's thread, run on its own thread."""

    def __init__(self, workers: List[Worker], turns: Turns, dispatch: Dispatch, header: "pb.ExecuteHeader",
                 batch: Optional[Batch], has_output: bool, timeout_s: float, on_progress: Optional[Progress],
                 check_lease: Callable[[], None], on_lost: Callable[[], None], chunk_bytes: int) -> None:
        self._workers = workers
        self._turns = turns
        self._dispatch = dispatch
        self._header = header
        self._has_output = has_output
        self._timeout_s = timeout_s + _RPC_MARGIN_S if timeout_s else None
        self._on_progress = on_progress
        self._check_lease = check_lease
        self._on_lost = on_lost  # called before the call ends, so that no further call is started
        self._events: "queue.Queue[Tuple[_Stream, str, Any]]" = queue.Queue()
        self._streams: Dict[int, _Stream] = {}
        self._is_committed = False
        self._callback_error: Optional[Exception] = None
        self._padded = 0
        self._inputs: List[Tuple[Optional["common_pb2.DataProtoSpec"], List["pb.ExecuteRequest"]]]
        self.ranks = sorted(dispatch.chunk_of_rank)
        self.is_offered = False
        self.cancel_reason: Optional[str] = None
        header.request_id = os.urandom(16)
        header.two_phase = True
        if batch is None:
            self._inputs = [(None, [])] * dispatch.num_chunks
        else:
            parts, self._padded = dispatch.split(batch)
            encoded = {id(part): _encode(part, chunk_bytes) for part in parts}
            self._inputs = [encoded[id(part)] for part in parts]
        turns.enter(self)

    def cancel(self, reason: str) -> None:
        if self.cancel_reason is None:
            self.cancel_reason = reason
            self._turns.wake()

    def run(self) -> Result:
        try:
            had_to_wait = self._turns.wait(self)
            if self.cancel_reason is not None and not self.is_offered and had_to_wait:
                raise RankdError("CANCELLED", "", f"cancelled before it began: {self.cancel_reason}")
            self._check_lease()
            for rank in self.ranks:
                self._open(rank)
            self._offer(had_to_wait)
            self._finish()
        except RankdError:
            if self._callback_error is not None:
                raise self._callback_error from None
            raise
        finally:
            self._turns.leave(self)
        return self._gather()

    # --- offer ---

    def _open(self, rank: int) -> None:
        worker = self._workers[rank]
        spec, chunks = self._inputs[self._dispatch.chunk_of_rank[rank]]
        header = pb.ExecuteHeader()
        header.CopyFrom(self._header)
        header.fence.CopyFrom(worker.fence)
        header.seq = worker.next_seq
        header.collect = rank in self._dispatch.collected
        if spec is not None:
            header.input.CopyFrom(spec)
        if header.ByteSize() > _HEADER_BYTES:
            raise RankdError("RESOURCE_EXHAUSTED", "", f"the header of the call (columns, options, plan) has "
                             f"{header.ByteSize()} bytes, the limit is {_HEADER_BYTES}")
        self._streams[rank] = _Stream(worker, header, chunks, self._timeout_s, self._events)

    def _next_event(self, timeout_s: float) -> Optional[Tuple[_Stream, str, Any]]:
        try:
            stream, what, content = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if what == "progress":
            self._tell_progress(stream.worker.rank, content)
        elif what in ("done", "error"):
            stream.is_done = True
        return stream, what, content

    def _tell_progress(self, rank: int, progress: "common_pb2.Progress") -> None:
        """An exception of the program's function ends the call, which raises it."""
        if self._on_progress is None or self._callback_error is not None:
            return
        try:
            self._on_progress(rank, progress)
        except Exception as error:  # pylint: disable=broad-except
            self._callback_error = error
            self.cancel("on_progress raised an exception")

    def _offer(self, had_to_wait: bool) -> None:
        hashes: Dict[int, bytes] = {}
        deadline_s = time.monotonic() + _ACCEPT_TIMEOUT_S
        num_reopened = 0
        while len(hashes) < len(self.ranks):
            event = self._next_event(0.1)
            error: Optional[BaseException] = None
            if self.cancel_reason is not None:
                error = RankdError("CANCELLED", "", f"cancelled: {self.cancel_reason}")
            elif event and event[1] == "accepted":
                hashes[event[0].worker.rank] = event[2]
            elif event and event[1] == "error":
                # The header may arrive before the commit of the previous call; the daemon then
                # rejects it.
                if had_to_wait and getattr(event[2], "reason", "") == "SEQ_GAP" and num_reopened < 200:
                    num_reopened += 1
                    time.sleep(0.005)
                    self._open(event[0].worker.rank)
                    continue
                error = event[2]
            elif time.monotonic() > deadline_s:
                late = [rank for rank in self.ranks if rank not in hashes]
                error = RankdError("DEADLINE_EXCEEDED", "", f"ranks {late} neither accepted nor refused the call within "
                                   f"{_ACCEPT_TIMEOUT_S:.0f} s")
            if error is None and len(set(hashes.values())) > 1:
                error = RankdError("INTERNAL", "", "the ranks accepted different plans: their daemons differ in version")
            if error is not None:
                raise self._withdraw(error)
        self._is_committed = True
        for rank in self.ranks:
            self._workers[rank].next_seq += 1
            self._streams[rank].commit()
        self._turns.offered(self)

    def _running(self) -> List[_Stream]:
        return [stream for stream in self._streams.values() if not stream.is_done]

    def _withdraw(self, first: BaseException) -> BaseException:
        """Withdraws the call on all ranks; its sequence numbers can be reused."""
        errors = [first]
        for stream in self._running():
            stream.cancel("another rank did not accept the call")
        give_up_s = time.monotonic() + _WITHDRAW_S
        while self._running() and time.monotonic() < give_up_s:
            event = self._next_event(0.1)
            if event and event[1] == "error":
                errors.append(event[2])
        for stream in self._running():
            stream.abandon()
        return self._error(errors)

    # --- run ---

    def _finish(self) -> None:
        errors: List[BaseException] = []
        abort_s = give_up_s = float("inf")
        is_cancelled = is_aborted = False
        while self._running():
            event = self._next_event(0.1)
            now_s = time.monotonic()
            if event and event[1] == "error":
                errors.append(event[2])
                abort_s = min(abort_s, now_s + _FAILURE_GRACE_S)
            if self.cancel_reason is not None and not is_cancelled:
                is_cancelled = True
                abort_s = now_s + _CANCEL_GRACE_S
                for stream in self._running():
                    stream.cancel(self.cancel_reason)
            if now_s >= abort_s and not is_aborted:
                is_aborted = True
                give_up_s = now_s + _GIVE_UP_S
                self._abort(str(errors[0]) if errors else f"cancelled: {self.cancel_reason}")
            if now_s >= give_up_s:
                give_up_s = float("inf")
                for stream in self._running():
                    stream.abandon()
        if errors and is_cancelled:
            raise RankdError("CANCELLED", "", f"cancelled: {self.cancel_reason}")
        if errors:
            raise self._error(errors)

    def _abort(self, reason: str) -> None:
        """Aborts the call and the communicators on the remaining ranks: they keep their models and can be
        configured again."""
        for stream in self._running():
            request = pb.CancelRequest(fence=stream.worker.fence, request_id=self._header.request_id, abort_comm=True,
                                       reason=reason[:256])
            stream.worker.control.Cancel.future(request, timeout=5.0, metadata=stream.worker.metadata)

    def _error(self, errors: List[BaseException]) -> BaseException:
        for error in errors:
            if not isinstance(error, RankdError):
                return error
        known = [error for error in errors if isinstance(error, RankdError)]
        root = root_of(known)
        name = f"{self._header.role}.{self._header.method}"
        text = root.message if root.message.startswith(name) else f"{name}: {root.message}"
        result = RankdError(root.code, root.reason, text, root.rank, root.address)
        if root.is_lost:
            self._on_lost()
            witness = next((f"; rank {e.rank} says: {e.message}" for e in known if not e.is_lost), "")
            result = RankdError("ABORTED", "PEER_LOST", f"{name}: the connection ended: {root.message}{witness}",
                                root.rank, root.address)
            result.is_lost = True
        return result

    # --- after ---

    def _gather(self) -> Result:
        results = {rank: stream.result for rank, stream in self._streams.items() if stream.result is not None}
        outputs = [output for output in (self._streams[rank].output for rank in self._dispatch.collected)
                   if output is not None]  # an empty batch is false
        result = Result(Batch(), outputs, merge_metrics(results, self._dispatch.collected))
        if self._has_output and self._dispatch.mode.payload == "proto":
            whole = concat(outputs)
            result.batch = whole.rows(slice(0, whole.num_rows - self._padded)) if self._padded else whole
        return result


def _encode(part: Batch, chunk_bytes: int) -> Tuple["common_pb2.DataProtoSpec", List["pb.ExecuteRequest"]]:
    """A chunk of the batch as messages, encoded once for all its ranks."""
    spec, tensors = encode(part)
    messages = []
    for i, data in enumerate(tensors):
        for at in range(0, len(data), chunk_bytes):
            messages.append(pb.ExecuteRequest(chunk=pb.TensorChunk(tensor=i, offset=at,
                                                                   data=bytes(data[at:at + chunk_bytes]))))
    return spec, messages


def start(call: Call) -> CallFuture:
    """Runs the call on a new thread."""
    future = CallFuture(call)
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call.run())
        except BaseException as error:  # pylint: disable=broad-except
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="rankd-call").start()
    return future


__all__ = ["Call", "CallFuture", "Progress", "Result", "Turns", "entries", "merge_metrics", "start"]
