"""Daemons for tests: processes of this build ($RK_TEST_BIN), and a fake one that tests control."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest
from concurrent import futures

import grpc

import rankd
from rankd.v1 import common_pb2, worker_pb2 as pb, worker_pb2_grpc

BIN = pathlib.Path(os.environ["RK_TEST_BIN"])
SOURCE = pathlib.Path(__file__).parents[3]
FACTOR = float(os.environ.get("RK_TEST_TIMEOUT_FACTOR", "1"))
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "max_position_embeddings": 20000, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False,
}


class Daemons:
    """Processes on Unix sockets in a temporary directory."""

    def __init__(self, count, *flags, over_tcp=False):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="rankd-py-"))
        self.hosts = ["127.0.0.1:0" if over_tcp else f"unix:{self.dir}/{i}.sock" for i in range(count)]
        self.procs = []
        for i, host in enumerate(self.hosts):
            log = open(self.dir / f"{i}.log", "w", encoding="utf-8")
            self.procs.append(subprocess.Popen([BIN / "rankd", f"--rpc.listen={host}", "--cpu.num_threads=1", *flags],
                                               stdout=log, stderr=subprocess.STDOUT))
            log.close()
        deadline = time.monotonic() + 60 * FACTOR
        for i in range(len(self.hosts)):
            while "rankd: listening on" not in self.log(i):
                if self.procs[i].poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"daemon {i} did not start: {self.log(i)}")
                time.sleep(0.05)
            self.hosts[i] = re.search(r"^rankd: listening on (\S+)$", self.log(i), re.MULTILINE).group(1)

    def log(self, i):
        return (self.dir / f"{i}.log").read_text(encoding="utf-8")

    def stop(self):
        for proc in self.procs:
            proc.terminate()
        for proc in self.procs:
            try:
                proc.wait(30 * FACTOR)
            except subprocess.TimeoutExpired:
                proc.kill()
                proc.wait()
        shutil.rmtree(self.dir)


class DaemonTest(unittest.TestCase):
    """A test with daemons, which end with the test."""

    def daemons(self, count, *flags, **more):
        daemons = Daemons(count, *flags, **more)
        self.addCleanup(daemons.stop)
        return daemons

    def connect(self, hosts, **more):
        client = rankd.connect(hosts, **more)
        self.addCleanup(client.close)
        return client

    def group(self, count, **mesh):
        """A claimed and configured group with a small random model."""
        daemons = self.daemons(count)
        client = self.connect(daemons.hosts)
        client.claim()
        self.set_up(client, **mesh)
        return daemons, client

    def set_up(self, client, **mesh):
        client.configure({"actor": rankd.Mesh(**mesh), "rollout": rankd.Mesh(**mesh)})
        client.actor.init_model({"model.hf_config": MODEL})
        client.rollout.init_model({"share_weights_of": "actor", "rollout.max_num_seqs": 4})

    def assert_refused(self, code, reason, function, *args, **more):
        with self.assertRaises(rankd.RankdError) as caught:
            function(*args, **more)
        self.assertEqual((caught.exception.code, caught.exception.reason), (code, reason), caught.exception)
        return caught.exception


class FakeWorker(worker_pb2_grpc.WorkerServicer):
    """One method, actor.echo, which takes `columns` and returns its batch. Subclasses violate the protocol."""

    def __init__(self, columns=("x",)):
        self.headers = []
        self.columns = columns

    def ListMethods(self, request, context):
        return pb.ListMethodsResponse(method=[common_pb2.MethodInfo(
            name="echo", role=["actor"], dispatch="MEGATRON_COMPUTE_PROTO", execute="ALL",
            input=[common_pb2.FieldInfo(name=name) for name in self.columns], output=[common_pb2.FieldInfo(name="x")])])

    def GetStatus(self, request, context):
        role = common_pb2.RoleRank(role="actor", mesh=common_pb2.Mesh(tp=1, dp=1))
        return pb.WorkerStatus(state="READY", incarnation=7, mesh_generation=1,
                               rank=common_pb2.RankInfo(world_size=1, role=[role]))

    def AcquireLease(self, request, context):
        return pb.AcquireLeaseResponse(fence=common_pb2.Fence(epoch=request.epoch, lease_id=b"1" * 16, incarnation=7),
                                       ttl_ms=request.ttl_ms)

    def KeepAlive(self, requests, context):
        for _ in requests:
            yield pb.KeepAliveResponse()

    def ReleaseLease(self, request, context):
        return pb.ReleaseLeaseResponse()

    def Cancel(self, request, context):
        return pb.CancelResponse(outcome="flagged")

    def Execute(self, requests, context):
        header = next(requests).header
        self.headers.append(header)
        chunks = []
        if sum(tensor.byte_size for tensor in header.input.tensor):
            size = 0
            while size < sum(tensor.byte_size for tensor in header.input.tensor):
                chunks.append(next(requests).chunk)
                size += len(chunks[-1].data)
        yield pb.ExecuteResponse(accepted=pb.Accepted(seq=header.seq, plan_hash=b"h" * 32))
        if next(requests, pb.ExecuteRequest()).WhichOneof("m") != "commit":
            context.abort(grpc.StatusCode.CANCELLED, "withdrawn")
        yield from self.answer(header, chunks)

    def answer(self, header, chunks):
        yield pb.ExecuteResponse(result=pb.ExecuteResult(output=header.input))
        for chunk in chunks:
            yield pb.ExecuteResponse(chunk=chunk)


class FakeTest(DaemonTest):
    """A test with a client of a fake daemon."""

    def fake(self, worker=None):
        worker = worker or FakeWorker()
        folder = tempfile.mkdtemp(prefix="rankd-py-")
        self.addCleanup(shutil.rmtree, folder)
        server = grpc.server(futures.ThreadPoolExecutor(16))
        worker_pb2_grpc.add_WorkerServicer_to_server(worker, server)
        server.add_insecure_port(f"unix:{folder}/fake.sock")
        server.start()
        self.addCleanup(lambda: server.stop(None).wait())
        client = self.connect([f"unix:{folder}/fake.sock"])
        client.claim()
        client.adopt()
        return worker, client
