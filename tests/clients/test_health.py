"""Goal: probes such as grpc_health_probe and the kubelet's work on the daemon's own listener and on health.listen, which
serves nothing else. Method: the stock grpc package with messages that are encoded by hand; a probe that answers with
grpc_health_probe's exit codes.

Usage: test_health.py RANKD
"""
import os
import select
import socket
import sys
import tempfile
import time
import unittest

import grpc

from stock import Daemon, Reflection, TIMEOUT_S, TOKENS, bearer, get, refused_start

RANKD = sys.argv.pop(1)
SERVING, NOT_SERVING = 1, 2
OK, UNREACHABLE, RPC_FAILED, UNHEALTHY = 0, 2, 3, 4  # of grpc_health_probe
PLACES = 32  # RK_LIMIT_HEALTH_CONNECTIONS
HEALTH = ("--health.listen=127.0.0.1:0",)


def same(data):
    return data


def request(service):
    return bytes([1 << 3 | 2, len(service)]) + service.encode() if service else b""


def check(channel, service="", metadata=()):
    call = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=same, response_deserializer=same)
    return get(call(request(service), metadata=metadata, timeout=TIMEOUT_S), 1)[0]


def probe(address, service=""):
    with grpc.insecure_channel(address) as channel:
        try:
            return OK if check(channel, service) == SERVING else UNHEALTHY
        except grpc.RpcError as error:
            return UNREACHABLE if error.code() == grpc.StatusCode.UNAVAILABLE else RPC_FAILED


def listening_sockets(pid):
    """Ports of TCP and names of Unix sockets on which the process listens."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if link.startswith("socket:"):
            inodes.add(link[len("socket:["):-1])
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as file:
            for row in list(file)[1:]:
                words = row.split()
                if words[3] == "0A" and words[9] in inodes:
                    found.add(int(words[1].rpartition(":")[2], 16))
    with open(f"/proc/{pid}/net/unix") as file:
        for row in list(file)[1:]:
            words = row.split()
            if words[3] == "00010000" and words[6] in inodes:  # __SO_ACCEPTCON
                found.add(words[-1])
    return found


def port(address):
    return int(address.rpartition(":")[2])


class Probes(unittest.TestCase):
    def test_probe_without_a_token(self):
        """Both listeners answer probes; neither does after the end."""
        with Daemon(RANKD, *HEALTH, tokens=True) as daemon:
            addresses = (daemon.address, daemon.addresses["health.listen"])
            self.assertNotEqual(*addresses)
            for address in addresses:
                self.assertEqual(probe(address), OK)
                self.assertEqual(probe(address, "rankd.v1.Worker"), OK)
                self.assertEqual(probe(address, "rankd.ready"), UNHEALTHY)
                self.assertEqual(probe(address, "nothing"), RPC_FAILED)
        for address in addresses:
            self.assertEqual(probe(address), UNREACHABLE)

    def test_a_draining_daemon_is_alive_and_takes_no_work(self):
        with Daemon(RANKD, *HEALTH, tokens=True) as daemon:
            address = daemon.addresses["health.listen"]
            with grpc.insecure_channel(daemon.address) as channel:
                reflection = Reflection(channel, metadata=bearer("admin"))
                reflection.call("rankd.v1.Admin", "Drain", {"reason": "test"})
                self.assertEqual(probe(address), OK)
                self.assertEqual(probe(address, "rankd.v1.Worker"), UNHEALTHY)
                reflection.call("rankd.v1.Admin", "Drain", {"undo": True})
                self.assertEqual(probe(address, "rankd.v1.Worker"), OK)

    def test_a_watch_hears_of_the_end(self):
        with Daemon(RANKD, *HEALTH) as daemon:
            with grpc.insecure_channel(daemon.addresses["health.listen"]) as channel:
                watch = channel.unary_stream("/grpc.health.v1.Health/Watch", request_serializer=same,
                                             response_deserializer=same)
                states = watch(request("rankd.v1.Worker"), timeout=TIMEOUT_S)
                self.assertEqual(get(next(states), 1), [SERVING])
                daemon.stop()
                self.assertEqual(get(next(states), 1), [NOT_SERVING])
                with self.assertRaises(grpc.RpcError) as raised:
                    next(states)
                self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)


class Listener(unittest.TestCase):
    def test_nothing_else_is_served(self):
        """Whatever the token, every path but those of health is unknown, and TLS is not spoken."""
        paths = ("/rankd.v1.Worker/GetStatus", "/rankd.v1.Worker/Execute", "/rankd.v1.Admin/Shutdown",
                 "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.health.v1.Health/List", "/", "/x/y")
        with Daemon(RANKD, *HEALTH, tokens=True) as daemon:
            with grpc.insecure_channel(daemon.addresses["health.listen"]) as channel:
                for path in paths:
                    for metadata in ((), bearer("admin")):
                        with self.assertRaises(grpc.RpcError) as raised:
                            channel.unary_unary(path)(b"", metadata=metadata, timeout=TIMEOUT_S)
                        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED, path)
                self.assertEqual(check(channel), SERVING)
            with grpc.insecure_channel(daemon.address) as channel:  # the main listener has these paths and requires a token
                for path in paths:
                    with self.assertRaises(grpc.RpcError) as raised:
                        channel.unary_unary(path)(b"", timeout=TIMEOUT_S)
                    self.assertIn(raised.exception.code(),
                                  (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED), path)

    def test_it_is_off_by_default(self):
        with Daemon(RANKD) as daemon:
            self.assertEqual(listening_sockets(daemon.process.pid), {port(daemon.address)})
        with Daemon(RANKD, *HEALTH) as daemon:
            self.assertEqual(listening_sockets(daemon.process.pid),
                             {port(address) for address in daemon.addresses.values()})

    def test_it_may_be_a_unix_socket(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "health")
            with Daemon(RANKD, "--health.listen=unix:" + path) as daemon:
                self.assertEqual(probe("unix:" + path), OK)
                self.assertIn(path, listening_sockets(daemon.process.pid))
            self.assertFalse(os.path.exists(path))

    def test_an_address_that_is_taken_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            code, error, out = refused_start(RANKD, "--health.listen=" + address)
            self.assertEqual((code, out), (4, ""))
            self.assertIn("health.listen", error)
            self.assertIn(address, error)
            code, error, _ = refused_start(RANKD, "--rpc.listen=" + address)
            self.assertEqual(code, 4)
            self.assertIn("rpc.listen", error)
            self.assertIn(address, error)
        code, error, _ = refused_start(RANKD, "--rpc.listen=" + address, "--health.listen=" + address)
        self.assertEqual(code, 2)
        self.assertIn("health.listen", error)
        self.assertIn("rpc.listen", error)

    def test_connections_are_bounded(self):
        """Peers that connect and say nothing make room for a probe, and are cut after their time."""
        with Daemon(RANKD, *HEALTH) as daemon:
            address = daemon.addresses["health.listen"]
            silent = [socket.create_connection(("127.0.0.1", port(address))) for _ in range(100)]
            begin = time.monotonic()
            while len(select.select(silent, [], [], 0)[0]) < len(silent) - PLACES:  # closed ones are readable
                self.assertLess(time.monotonic() - begin, TIMEOUT_S)
                time.sleep(0.01)
            self.assertEqual(probe(address), OK)
            begin = time.monotonic()
            for peer in silent:
                peer.settimeout(TIMEOUT_S)
                try:
                    self.assertEqual(peer.recv(1), b"")
                except ConnectionResetError:
                    pass
                peer.close()
            self.assertLess(time.monotonic() - begin, TIMEOUT_S)
            self.assertEqual(probe(address), OK)


if __name__ == "__main__":
    unittest.main()
