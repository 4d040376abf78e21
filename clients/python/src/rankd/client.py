"""The group of daemons: connect, claim, configure, call."""

from __future__ import annotations

import getpass
import os
import socket
from types import TracebackType
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Type, Union

from rankd import _call, _hosts, _watch, dispatch
from rankd._call import CallFuture, Progress, Result
from rankd._lease import Lease
from rankd._token import find_token, read_token
from rankd._watch import Event
from rankd._worker import CONTROL_TIMEOUT_S, Tls, Worker, call_all
from rankd.batch import Batch, Column, as_batch, entries
from rankd.errors import RankdError
from rankd.mesh import Grid, Mesh
from rankd.methods import Actor, Critic, Ref, Reward, Rollout, Teacher
from rankd.plan import Plan, layout, make_plan
from rankd.v1 import common_pb2, worker_pb2 as pb

_JOIN_TIMEOUT_S = 60.0
_CHUNK_BYTES = 2 << 20

Options = Mapping[str, Any]


def connect(hosts: Union[None, str, Iterable[str]] = None, *, token: Optional[str] = None, token_file: Optional[str] = None,
            tls: Optional[Tls] = None, driver_id: Optional[str] = None, driver_key: Optional[bytes] = None) -> "Client":
    """Opens connections to the daemons, in rank order. hosts: text as of rankctl --hosts ("node[1-4]:7000",
    "@FILE", "dns:NAME:PORT", "slurm:PORT", with commas), or a list of such terms; without it $RANKCTL_HOSTS.
    Without token and token_file, a daemon of this host that has made its own token is asked with that, as rankctl does.
    tls: without it $RANKCTL_TLS_CA, $RANKCTL_TLS_CERT and $RANKCTL_TLS_KEY, if they are set. ValueError for what
    does not parse. driver_id is shown to refused drivers; default user@host:pid. driver_key, 16 secret bytes,
    lets a restarted program get its lease back at once; default: random. Reads the method table of the first
    daemon, so it raises RankdError (UNAVAILABLE, UNAUTHENTICATED) when it cannot be reached."""
    if token_file is not None:
        token = read_token(token_file)
    return Client(_hosts.parse_hosts(hosts), token, tls or Tls.environment(),
                  driver_id or f"{getpass.getuser()}@{socket.gethostname()}:{os.getpid()}", driver_key or os.urandom(16))


class Client:
    """A group of daemons; host i is rank i. Use it as a context manager, or close() it."""

    def __init__(self, hosts: Sequence[str], token: Optional[str], tls: Optional[Tls], driver_id: str,
                 driver_key: bytes) -> None:
        self._workers = [Worker(rank, address, token or find_token(address), tls) for rank, address in enumerate(hosts)]
        self._driver_id = driver_id
        self._driver_key = driver_key
        self._lease: Optional[Lease] = None
        self._turns = _call.Turns()
        self._grids: Dict[str, Grid] = {}
        self._chunk_bytes = _CHUNK_BYTES
        self._mesh_generation = 0
        self._is_lost = False
        try:
            reply = call_all(self._workers[:1], "ListMethods", lambda _: pb.ListMethodsRequest(), CONTROL_TIMEOUT_S)[0]
        except RankdError:
            self.close()
            raise
        self._methods: Dict[str, List["common_pb2.MethodInfo"]] = {}
        for method in reply.method:
            for name in [method.name, *method.alias]:
                self._methods.setdefault(name, []).append(method)
        self.actor = Actor(self, "actor")
        self.rollout = Rollout(self, "rollout")
        self.ref = Ref(self, "ref")
        self.critic = Critic(self, "critic")
        self.reward = Reward(self, "reward")
        self.teacher = Teacher(self, "teacher")
        self.teacher_2 = Teacher(self, "teacher_2")
        self.teacher_3 = Teacher(self, "teacher_3")
        self.teacher_4 = Teacher(self, "teacher_4")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def close(self) -> None:
        """Ends the lease and the connections. Models stay on the daemons for lease.grace."""
        self.release()
        for worker in self._workers:
            worker.close()

    # --- queries; no lease needed ---

    @property
    def world_size(self) -> int:
        return len(self._workers)

    def status(self) -> List["pb.WorkerStatus"]:
        """The current status of every daemon."""
        return call_all(self._workers, "GetStatus", lambda _: pb.GetStatusRequest(), CONTROL_TIMEOUT_S)

    def methods(self) -> List["common_pb2.MethodInfo"]:
        """The method table of the first daemon."""
        return [infos[0] for name, infos in self._methods.items() if infos[0].name == name]

    def mesh(self, role: str) -> Grid:
        """The mesh of a role, laid over the ranks."""
        if role not in self._grids:
            raise RankdError("FAILED_PRECONDITION", "NOT_CONFIGURED", f"role {role!r} has no mesh in this group")
        return self._grids[role]

    def watch(self, kinds: Sequence[str] = (), *, level: str = "", from_event: int = 0,
              past_only: bool = False) -> Iterator[Event]:
        """Events of all daemons as they happen, until the loop is left.

        kinds       () for all: state, lease, method_start, method_end, progress, metrics, log
        level       minimum level of log events: debug, info, warn, error
        from_event  the first event to send, of those that the daemons still have; 0: new ones only, 1: all
        past_only   end when the events up to now have come
        """
        request = pb.WatchRequest(kind=kinds, level=level, from_event=from_event, past_only=past_only)
        return _watch.watch(self._workers, request)

    # --- the group ---

    def claim(self, *, ttl_s: float = 30.0, takeover: bool = False) -> int:
        """Acquires the lease on all daemons or on none, and renews it. Returns its epoch. RankdError LEASE_HELD
        names the other driver; takeover takes the lease from it."""
        self._check_idle("claim")
        self.release()
        self._lease = Lease(self._workers, self._driver_id, self._driver_key, ttl_s, takeover)
        self._mesh_generation = self._lease.mesh_generation
        self._is_lost = False
        return self._lease.epoch

    def release(self) -> None:
        """Releases the lease. The daemons cancel running calls."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _check_lease(self) -> None:
        if self._lease is None:
            raise RankdError("FAILED_PRECONDITION", "", "the daemons are not claimed; call claim() first")
        if self._is_lost:
            raise RankdError("FAILED_PRECONDITION", "", "a worker was lost in an earlier call; claim and configure the "
                             "group again")
        self._lease.check()

    def _check_idle(self, what: str) -> None:
        if self._turns.count():
            raise RankdError("FAILED_PRECONDITION", "", f"{what}: {self._turns.count()} calls are in flight, expected "
                             "none; wait for their futures first")

    def configure(self, meshes: Mapping[str, Mesh]) -> None:
        """Sets every rank's place in the meshes of the roles, and creates the communicators."""
        self._check_idle("configure")
        self._check_lease()
        grids = {}
        for role, mesh in meshes.items():
            try:
                grids[role] = Grid(mesh, self.world_size)
            except ValueError as error:
                raise ValueError(f"mesh of role {role!r}: {error}") from None
        for answer in call_all(self._workers, "Describe", lambda _: pb.DescribeRequest(), CONTROL_TIMEOUT_S):
            self._chunk_bytes = min(self._chunk_bytes, answer.max_chunk or self._chunk_bytes)
        self._grids = {}
        self._mesh_generation += 1
        request = pb.ConfigureRequest(world_size=self.world_size, mesh_generation=self._mesh_generation,
                                      mesh=[common_pb2.RoleMesh(role=role, mesh=mesh.message())
                                            for role, mesh in meshes.items()])
        request.make_comm_id = True
        endpoints = self._configure_round(request)
        request.make_comm_id = False
        request.comm_id = endpoints[0].comm_id
        request.peer.extend(pb.Peer(rank=worker.rank, comm_address=endpoint.comm_address,
                                    incarnation=worker.incarnation)
                            for worker, endpoint in zip(self._workers, endpoints))
        for worker, answer in zip(self._workers, self._configure_round(request)):
            _check_place(worker, answer.rank, grids)
        self._grids = grids

    def _configure_round(self, request: "pb.ConfigureRequest") -> List["pb.ConfigureResponse"]:
        def of(worker: Worker) -> "pb.ConfigureRequest":
            own = pb.ConfigureRequest()
            own.CopyFrom(request)
            own.fence.CopyFrom(worker.fence)
            own.rank = worker.rank
            return own

        return call_all(self._workers, "Configure", of, _JOIN_TIMEOUT_S, all_or_none=True)

    def adopt(self) -> None:
        """Adopts the meshes that the daemons have from an earlier configure()."""
        self._check_idle("adopt")
        statuses = self.status()
        grids: Dict[str, Grid] = {}
        for worker, status in zip(self._workers, statuses):
            if status.state == "UNCONFIGURED" or not status.rank.role:
                raise RankdError("FAILED_PRECONDITION", "NOT_CONFIGURED", f"state {status.state}; configure the group "
                                 "first", worker.rank, worker.address)
            if status.mesh_generation != statuses[0].mesh_generation:
                raise RankdError("FAILED_PRECONDITION", "WRONG_MESH", f"mesh generation {status.mesh_generation}, worker 0 "
                                 f"has {statuses[0].mesh_generation}", worker.rank, worker.address)
            for role in status.rank.role:
                grids.setdefault(role.role, Grid(Mesh.of(role.mesh), self.world_size))
        for worker, status in zip(self._workers, statuses):
            _check_place(worker, status.rank, grids)
        self._grids = grids
        self._mesh_generation = statuses[0].mesh_generation

    # --- plans ---

    def balance(self, role: str, batch: Mapping[str, Column], mini_batch_rows: int = 0) -> Batch:
        """The batch with its rows in the order of rankd.layout(): every replica of the role gets a balanced part
        of each mini-batch of consecutive rows. The column attention_mask gives the lengths. Call it before
        plan()."""
        batch = as_batch(batch)
        return batch.rows(layout(_row_sums(batch, "attention_mask"), self.mesh(role).size["dp"], mini_batch_rows))

    def plan(self, role: str, batch: Mapping[str, Column], *, max_token_len: int = 16384, mini_batch_rows: int = 0,
             epochs: int = 1) -> Plan:
        """rankd.make_plan() of a batch from balance(): lengths from the column attention_mask, the tokens of the
        loss from response_mask or loss_mask if the batch has one."""
        batch = as_batch(batch)
        mask = next((name for name in ("response_mask", "loss_mask") if name in batch), None)
        return make_plan(_row_sums(batch, "attention_mask"), self.mesh(role).size["dp"], max_token_len=max_token_len,
                         loss_tokens=_row_sums(batch, mask) if mask else None, mini_batch_rows=mini_batch_rows,
                         epochs=epochs)

    # --- calls ---

    def start(self, method: str, batch: Optional[Mapping[str, Column]] = None, options: Optional[Options] = None, *,
              plan: Optional[Plan] = None, timeout_s: float = 0.0, want: Sequence[str] = (),
              on_progress: Optional[Progress] = None) -> CallFuture:
        """Starts ROLE.METHOD and returns while it runs. Calls on the same ranks run in the order of their starts,
        each is sent while the previous one runs; calls on different ranks, and of different groups, run at the same
        time. Arrays of the batch must not be written to until the future is done.

        batch        columns by name. Of a Batch, those that the method does not take stay here; a dict may not have any
        plan         for methods that take one
        timeout_s    of the method on the daemons, from its start; 0: none but their watchdog's
        want         names of the columns to return; () for all
        on_progress  called with rank and Progress, on another thread
        """
        role, _, name = method.partition(".")
        info = self._find(role, name)
        self._check_lease()
        data = batch if batch is None else _input_of(info, batch)
        if (data is None) != (not info.input):
            raise ValueError(f"{method} {'needs a batch' if data is None else 'takes no batch'}")
        if (plan is None) == info.plan:
            raise ValueError(f"{method} {'needs a plan' if plan is None else 'takes no plan'}")
        header = pb.ExecuteHeader(mesh_generation=self._mesh_generation, role=role, method=info.name,
                                  option=entries(options), timeout_ms=int(timeout_s * 1000), want=want)
        if plan is not None:
            header.plan.CopyFrom(plan.message())
        call = _call.Call(self._workers, self._turns, dispatch.create(info.dispatch, role, self._grids), header, data,
                          bool(info.output), timeout_s, on_progress, self._check_lease, self._note_lost, self._chunk_bytes)
        return _call.start(call)

    def _note_lost(self) -> None:
        self._is_lost = True

    def call(self, method: str, batch: Optional[Mapping[str, Column]] = None, options: Optional[Options] = None, *,
             plan: Optional[Plan] = None, timeout_s: float = 0.0, want: Sequence[str] = (),
             on_progress: Optional[Progress] = None) -> Result:
        """start() and its result. KeyboardInterrupt cancels the call on the daemons."""
        future = self.start(method, batch, options, plan=plan, timeout_s=timeout_s, want=want, on_progress=on_progress)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel("interrupted by the user")
            future.exception()
            raise

    def _find(self, role: str, name: str) -> "common_pb2.MethodInfo":
        if name not in self._methods:
            raise RankdError("NOT_FOUND", "UNKNOWN_METHOD", f"method {name!r}, expected one of "
                             f"{', '.join(self._methods)}")
        for info in self._methods[name]:
            if role in info.role:
                return info
        raise RankdError("INVALID_ARGUMENT", "BAD_FIELD", f"role {role!r} has no method {name!r}, roles "
                         f"{', '.join(self._methods[name][0].role)} have it")


def _input_of(info: "common_pb2.MethodInfo", batch: Mapping[str, Column]) -> Batch:
    """A Batch may come from other calls and have more columns than this method takes."""
    if not isinstance(batch, Batch):
        return Batch(batch)
    names = {column.name for column in info.input}
    return batch.select(*(name for name in batch if name in names)) if info.input else batch


def _row_sums(batch: Batch, mask: str) -> List[int]:
    return [int(n) for n in batch.array(mask).sum(axis=1)]


def _check_place(worker: Worker, info: "common_pb2.RankInfo", grids: Mapping[str, Grid]) -> None:
    """Checks that the place that a daemon reports is that of the mesh arithmetic."""
    places = {role.role: {"tp": role.tp_rank, "cp": role.cp_rank, "dp": role.dp_rank, "pp": role.pp_rank}
              for role in info.role}
    expected = {role: grid.coords[worker.rank] for role, grid in grids.items() if worker.rank in grid.coords}
    if info.rank != worker.rank or places != expected:
        raise RankdError("INTERNAL", "", f"the daemon reports rank {info.rank} at {places}, expected rank {worker.rank} at "
                         f"{expected}", worker.rank, worker.address)
