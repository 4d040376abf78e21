"""Over mutual TLS with the certificates of `rankctl certs init`."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import rankd
from support import BIN, DaemonTest

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "grpo_digits.py"


class MutualTls(DaemonTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.certs = self.make_certs(folder.name, "good")
        self.others = self.make_certs(folder.name, "others")

    def make_certs(self, folder, name):
        out = pathlib.Path(folder) / name
        subprocess.run([BIN / "rankctl", "certs", "init", "--hosts", "127.0.0.1", "--out", out], check=True,
                       stdout=subprocess.DEVNULL)
        return out

    def secure_daemons(self, count):
        return self.daemons(count, f"--rpc.tls_cert={self.certs}/127.0.0.1.crt", f"--rpc.tls_key={self.certs}/127.0.0.1.key",
                            f"--rpc.tls_ca={self.certs}/ca.crt", over_tcp=True)

    def tls(self, certs, **more):
        return rankd.Tls(**{"ca": f"{certs}/ca.crt", "cert": f"{certs}/rankctl.crt", "key": f"{certs}/rankctl.key", **more})

    def test_who_is_let_in(self):
        """Goal: a client with a certificate of the daemon's authority can connect; one without TLS, without a
        certificate, with that of another authority, or that does not trust the daemon's authority or name,
        cannot."""
        hosts = self.secure_daemons(1).hosts
        self.assertEqual(self.connect(hosts, tls=self.tls(self.certs)).claim(), 1)
        named = [f"localhost:{address.rpartition(':')[2]}" for address in hosts]
        self.assert_refused("UNAVAILABLE", "", rankd.connect, named, tls=self.tls(self.certs))
        self.assertEqual(len(self.connect(named, tls=self.tls(self.certs, server_name="127.0.0.1")).status()), 1)
        for tls in (None, rankd.Tls(ca=f"{self.certs}/ca.crt"), self.tls(self.others),
                    self.tls(self.certs, cert=f"{self.others}/rankctl.crt", key=f"{self.others}/rankctl.key"),
                    self.tls(self.certs, ca=f"{self.others}/ca.crt"), self.tls(self.certs, server_name="node7")):
            self.assert_refused("UNAVAILABLE", "", rankd.connect, hosts, tls=tls)

    def test_files(self):
        """Goal: errors name a missing file and an incomplete pair."""
        with self.assertRaisesRegex(FileNotFoundError, "none.crt"):
            rankd.connect("h:1", tls=self.tls(self.certs, ca=f"{self.certs}/none.crt"))
        with self.assertRaisesRegex(ValueError, "cert and key"):
            rankd.connect("h:1", tls=rankd.Tls(ca=f"{self.certs}/ca.crt", cert=f"{self.certs}/rankctl.crt"))

    def test_example(self):
        """Goal: the GRPO example, as a user starts it, trains over mutual TLS."""
        hosts = ",".join(self.secure_daemons(2).hosts)
        variables = {"RANKCTL_TLS_CA": "ca.crt", "RANKCTL_TLS_CERT": "rankctl.crt", "RANKCTL_TLS_KEY": "rankctl.key"}
        run = subprocess.run([sys.executable, EXAMPLE, hosts, "4"], capture_output=True, text=True,
                             env={**os.environ, **{name: str(self.certs / file) for name, file in variables.items()}})
        self.assertEqual(run.returncode, 0, run.stderr)
        rewards = [float(line.split()[-1]) for line in run.stdout.splitlines()]
        self.assertEqual(len(rewards), 4)
        self.assertGreater(rewards[-1], rewards[0])


if __name__ == "__main__":
    unittest.main()
