"""The lease on a group: acquired on all daemons or on none, renewed by one thread per daemon."""

from __future__ import annotations

import random
import threading
import time
from typing import Dict, Iterator, List, Optional

import grpc

from rankd._worker import CONTROL_TIMEOUT_S, Worker, call_all
from rankd.errors import RankdError
from rankd.v1 import worker_pb2 as pb

_ATTEMPTS = 4  # retries after losing a race against another driver
_RENEWALS_PER_TTL = 3


class Lease:
    """The lease of claimed daemons. Ends with release()."""

    def __init__(self, workers: List[Worker], driver_id: str, driver_key: bytes, ttl_s: float, takeover: bool) -> None:
        self._workers = workers
        self._driver_id = driver_id
        self._driver_key = driver_key
        self._takeover = takeover
        self._ended = threading.Event()
        self._streams: List[Optional[grpc.Call]] = [None] * len(workers)
        self._threads: List[threading.Thread] = []
        self.ttl_s = ttl_s
        self.epoch = 0
        self.mesh_generation = 0
        self._acquire()
        for worker in workers:
            thread = threading.Thread(target=self._keep, args=(worker,), daemon=True, name=f"rankd-lease-{worker.rank}")
            self._threads.append(thread)
            thread.start()

    # --- acquisition ---

    def _acquire(self) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                self._acquire_once()
                return
            except RankdError as error:
                # Worker 0 is the lock. A stale epoch means that another driver was faster.
                if error.reason != "STALE_EPOCH" or attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(0.5 + random.random() * 1.5)

    def _acquire_once(self) -> None:
        statuses = call_all(self._workers, "GetStatus", lambda _: pb.GetStatusRequest(), CONTROL_TIMEOUT_S)
        known: Dict[int, int] = {}
        for worker, status in zip(self._workers, statuses):
            if status.incarnation in known:
                raise RankdError("INVALID_ARGUMENT", "", f"workers {known[status.incarnation]} and {worker.rank} "
                                 f"({worker.address}) are one daemon")
            known[status.incarnation] = worker.rank
            worker.incarnation = status.incarnation
        self.epoch = max(status.epoch for status in statuses) + 1
        self.mesh_generation = max(status.mesh_generation for status in statuses)
        taken: List[Worker] = []
        try:
            for part in (self._workers[:1], self._workers[1:]):
                replies = call_all(part, "AcquireLease", self._request, CONTROL_TIMEOUT_S)
                for worker, reply in zip(part, replies):
                    self._grant(worker, reply)
                taken += part
        except RankdError:
            self._release(self._workers if taken else [])
            raise

    def _request(self, worker: Worker) -> "pb.AcquireLeaseRequest":
        return pb.AcquireLeaseRequest(driver_id=self._driver_id, driver_key=self._driver_key, epoch=self.epoch,
                                      ttl_ms=int(self.ttl_s * 1000), takeover=self._takeover,
                                      incarnation=worker.incarnation)

    def _grant(self, worker: Worker, reply: "pb.AcquireLeaseResponse") -> None:
        worker.fence = reply.fence
        worker.next_seq = 1
        worker.renewed_s = time.monotonic()
        if reply.ttl_ms:
            self.ttl_s = min(self.ttl_s, reply.ttl_ms / 1000)

    # --- renewal ---

    def _beats(self, worker: Worker, ended: threading.Event) -> Iterator["pb.KeepAliveRequest"]:
        while not ended.is_set() and not self._ended.is_set():
            yield pb.KeepAliveRequest(fence=worker.fence)
            ended.wait(self.ttl_s / _RENEWALS_PER_TTL)

    def _keep(self, worker: Worker) -> None:
        while not self._ended.is_set():
            ended = threading.Event()
            stream = worker.control.KeepAlive(self._beats(worker, ended), metadata=worker.metadata)
            self._streams[worker.rank] = stream
            try:
                for _ in stream:
                    worker.renewed_s = time.monotonic()
            except grpc.RpcError:
                pass  # check() raises if it persists
            ended.set()
            self._ended.wait(1.0)

    def check(self) -> None:
        """Raises LEASE_EXPIRED when a renewal is overdue, so that no call is issued under an expired lease."""
        for worker in self._workers:
            age_s = time.monotonic() - worker.renewed_s
            if age_s > 0.8 * self.ttl_s:
                raise RankdError("FAILED_PRECONDITION", "LEASE_EXPIRED", f"the last renewal was acknowledged {age_s:.1f} "
                                 f"s ago, the lease lasts {self.ttl_s:.1f} s", worker.rank, worker.address)

    # --- end ---

    def _release(self, workers: List[Worker]) -> None:
        calls = [worker.control.ReleaseLease.future(pb.ReleaseLeaseRequest(fence=worker.fence), timeout=2.0,
                                                    metadata=worker.metadata)
                 for worker in workers if worker.fence.epoch == self.epoch]
        for call in calls:
            call.exception()

    def release(self) -> None:
        self._ended.set()
        for stream in self._streams:
            if stream is not None:
                stream.cancel()
        self._release(self._workers)
        for thread in self._threads:
            thread.join(5.0)
