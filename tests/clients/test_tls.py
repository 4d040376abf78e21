"""Goal: clients such as grpcurl and grpc_health_probe work over TLS with a token, and over mutual TLS; a probe that has
neither is served by health.listen, and by nothing else. Method: the stock grpc package with a private authority.

Usage: test_tls.py RANKD RANKCTL
"""
import os
import subprocess
import sys
import tempfile
import unittest

import grpc

from stock import Daemon, Reflection, TIMEOUT_S, bearer, get

RANKD, RANKCTL = sys.argv[1:3]
del sys.argv[1:3]
SERVING = 1


def same(data):
    return data


def check_health(channel):
    call = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=same, response_deserializer=same)
    return get(call(b"", timeout=TIMEOUT_S), 1)[0]


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        for name in ("certs", "others"):
            subprocess.run([RANKCTL, "certs", "init", "--hosts", "127.0.0.1", "--out", cls.path(name)], check=True,
                           stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)

    @classmethod
    def path(cls, *names):
        return os.path.join(cls.folder, *names)

    def read(self, *names):
        with open(self.path(*names), "rb") as file:
            return file.read()

    def start(self, *flags, **options):
        files = ("--rpc.tls_cert=" + self.path("certs/127.0.0.1.crt"), "--rpc.tls_key=" + self.path("certs/127.0.0.1.key"))
        return self.enterContext(Daemon(RANKD, *files, *flags, **options))

    def connect(self, daemon, authority="certs", client=None):
        key, cert = (self.read(client, "rankctl.key"), self.read(client, "rankctl.crt")) if client else (None, None)
        credentials = grpc.ssl_channel_credentials(self.read(authority, "ca.crt"), key, cert)
        return self.enterContext(grpc.secure_channel(daemon.address, credentials))

    def refuse(self, channel):
        """UNAVAILABLE is what gRPC makes of a handshake that failed."""
        with self.assertRaises(grpc.RpcError) as raised:
            check_health(channel)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)

    def test_tls_and_a_token(self):
        daemon = self.start(tokens=True)
        channel = self.connect(daemon)
        self.assertEqual(check_health(channel), SERVING)
        for version in ("v1", "v1alpha"):
            with self.assertRaises(grpc.RpcError) as raised:
                Reflection(channel, version)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
            reflection = Reflection(channel, version, bearer("viewer"))
            self.assertIn("rankd.v1.Worker", reflection.services())
            self.assertEqual(reflection.call("rankd.v1.Worker", "GetStatus").state, "UNCONFIGURED")
        self.refuse(self.connect(daemon, authority="others"))
        self.refuse(self.enterContext(grpc.insecure_channel(daemon.address)))

    def test_a_token_by_call_credentials(self):
        """As a library sends it that knows of tokens: with the credentials of the channel."""
        daemon = self.start(tokens=True)
        token = bearer("viewer")[0][1][len("Bearer "):]
        credentials = grpc.composite_channel_credentials(grpc.ssl_channel_credentials(self.read("certs", "ca.crt")),
                                                         grpc.access_token_call_credentials(token))
        channel = self.enterContext(grpc.secure_channel(daemon.address, credentials))
        self.assertEqual(Reflection(channel).call("rankd.v1.Worker", "GetStatus").state, "UNCONFIGURED")

    def test_mutual_tls(self):
        daemon = self.start("--rpc.tls_ca=" + self.path("certs/ca.crt"), "--health.listen=127.0.0.1:0",
                            "--metrics.listen=127.0.0.1:0")
        reflection = Reflection(self.connect(daemon, client="certs"))
        self.assertEqual(reflection.call("rankd.v1.Worker", "GetStatus").state, "UNCONFIGURED")
        self.refuse(self.connect(daemon))
        self.refuse(self.connect(daemon, client="others"))

        probe = self.enterContext(grpc.insecure_channel(daemon.addresses["health.listen"]))
        self.assertEqual(check_health(probe), SERVING)
        with self.assertRaises(grpc.RpcError) as raised:
            Reflection(probe)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        with self.assertRaises(grpc.RpcError) as raised:
            probe.unary_unary("/rankd.v1.Worker/GetStatus")(b"", timeout=TIMEOUT_S)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)


if __name__ == "__main__":
    unittest.main()
