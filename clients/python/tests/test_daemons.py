"""Against real daemons: leases, tokens, calls, futures, and daemons that die."""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest
from unittest import mock

import numpy as np

import rankd
from rankd import _lease
from rankd._token import find_token
from support import BIN, FACTOR, MODEL, DaemonTest

ENDLESS = {"response_length": 19000, "ignore_eos": True}


def prompts(num_rows=4):
    ids = 2 + np.arange(num_rows * 3).reshape(num_rows, 3) % 60
    return {"prompts": ids, "attention_mask": np.ones_like(ids), "stream": np.arange(num_rows)}


class Leases(DaemonTest):
    def test_unreachable_daemon(self):
        """Goal: the error names an unreachable daemon within seconds."""
        error = self.assert_refused("UNAVAILABLE", "", rankd.connect, ["unix:/does/not/exist.sock"])
        self.assertEqual((error.rank, error.address), (0, "unix:/does/not/exist.sock"))

    def test_tokens(self):
        """Goal: without a token, or with a wrong one, every call is rejected; a viewer's token may read and not
        claim."""
        folder = tempfile.mkdtemp()
        path = pathlib.Path(folder) / "tokens"
        path.write_text(f"driver:{'d' * 40}\nviewer:{'v' * 40}\n")
        path.chmod(0o600)
        daemons = self.daemons(1, f"--rpc.token_file={path}")
        self.assert_refused("UNAUTHENTICATED", "TOKEN", rankd.connect, daemons.hosts)
        self.assert_refused("UNAUTHENTICATED", "TOKEN", rankd.connect, daemons.hosts, token="x" * 40)
        viewer = self.connect(daemons.hosts, token="v" * 40)
        self.assertEqual(viewer.status()[0].state, "UNCONFIGURED")
        self.assert_refused("PERMISSION_DENIED", "ROLE", viewer.claim)
        self.assertEqual(self.connect(daemons.hosts, token_file=str(path)).claim(), 1)

    def test_tokens_that_daemons_make(self):
        """Goal: the token of a service is found beside its Unix socket, or by its address."""
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for slot in "012":
            (root / slot).mkdir()
        with mock.patch.dict(os.environ, {"RUNTIME_DIRECTORY": str(root / "0")}):
            daemons = self.daemons(1)
        self.assert_refused("UNAUTHENTICATED", "TOKEN", rankd.connect, daemons.hosts)
        self.connect(daemons.hosts, token=find_token(daemons.hosts[0], str(root)))
        (daemons.dir / "token").write_text((root / "0" / "token").read_text())
        self.assertEqual(self.connect(daemons.hosts).claim(), 1)
        (root / "1" / "address").write_text("127.0.0.1:7001")
        (root / "1" / "token").write_text("admin:one\n")
        (root / "2" / "token").write_text("admin:two\n")
        for address, token in (("localhost:7001", "one"), ("127.0.0.1:7001", "one"), ("127.0.0.1:7002", None),
                               ("unix-abstract:rankd", None), (f"unix:{root}/2/rankd.sock", "two")):
            self.assertEqual(find_token(address, str(root)), token, address)
        self.assertIsNone(find_token("127.0.0.1:7001", "/does/not/exist"))

    def test_one_driver_at_a_time(self):
        """Goal: a second driver is rejected and holds no lease; after a takeover the first driver's calls are
        rejected."""
        daemons = self.daemons(2)
        first, second = self.connect(daemons.hosts, driver_id="first"), self.connect(daemons.hosts, driver_id="second")
        self.assertEqual(first.claim(), 1)
        self.assertIn('"first"', self.assert_refused("FAILED_PRECONDITION", "LEASE_HELD", second.claim).message)
        self.set_up(first)
        self.assertGreater(second.claim(takeover=True), 1)
        self.assert_refused("FAILED_PRECONDITION", "STALE_EPOCH", first.call, "actor.get_mesh_info")
        second.adopt()
        self.assertEqual(len(second.call("actor.get_mesh_info").outputs), 2)
        second.release()
        self.assert_refused("FAILED_PRECONDITION", "", second.call, "actor.get_mesh_info")
        self.set_up_again(first)

    def set_up_again(self, client):
        client.claim()
        self.set_up(client)
        client.rollout.generate_sequences(prompts(), {"response_length": 2})

    def test_lease_is_kept_alive(self):
        """Goal: a short lease is renewed while the program is idle, and ends when the client is gone."""
        daemons = self.daemons(1)
        first, second = self.connect(daemons.hosts), self.connect(daemons.hosts)
        first.claim(ttl_s=5)
        time.sleep(7)
        self.assert_refused("FAILED_PRECONDITION", "LEASE_HELD", second.claim)
        first.close()
        second.claim()

    def test_lapsed_lease(self):
        """Goal: after a daemon was stopped for longer than the lease, the client does not issue calls."""
        daemons = self.daemons(1)
        client = self.connect(daemons.hosts)
        client.claim(ttl_s=5)
        self.set_up(client)
        daemons.procs[0].send_signal(signal.SIGSTOP)
        time.sleep(5)
        self.assert_refused("FAILED_PRECONDITION", "LEASE_EXPIRED", client.call, "actor.get_mesh_info")
        daemons.procs[0].send_signal(signal.SIGCONT)

    def test_lease_back_at_once(self):
        """Goal: a client whose release did not reach a daemon, and a program restarted with its key, get the
        lease at once; another client does not."""
        daemons = self.daemons(1)
        key = b"k" * 16
        first = self.connect(daemons.hosts, driver_key=key)
        first.claim()
        with mock.patch.object(_lease.Lease, "_release"):  # a stopped daemon may read the message later
            first.release()
        self.assert_refused("FAILED_PRECONDITION", "LEASE_HELD", self.connect(daemons.hosts).claim)
        self.assertEqual(first.claim(), 2)
        self.assertEqual(self.connect(daemons.hosts, driver_key=key).claim(), 3)

    def test_hosts(self):
        """Goal: errors in lists of hosts name the position, before any connection is opened."""
        for hosts, what in (("unix:/a,unix:/a", "'unix:/a' is listed twice"), ("host:0", "host:0"), ("", "is empty"),
                            ([], "is empty"), (None, "RANKCTL_HOSTS")):
            with self.assertRaisesRegex(ValueError, what):
                rankd.connect(hosts)
        daemons = self.daemons(2)
        path = daemons.dir / "hosts"
        path.write_text("# the second\n" + daemons.hosts[1] + "\n")
        client = self.connect(f"{daemons.hosts[0]},@{path}")
        self.assertEqual(client.world_size, 2)
        (daemons.dir / "link").symlink_to(daemons.dir)
        twice = self.connect([daemons.hosts[0], f"unix:{daemons.dir}/link/0.sock"])
        self.assertIn("one daemon", self.assert_refused("INVALID_ARGUMENT", "", twice.claim).message)


class Calls(DaemonTest):
    def test_results_of_a_mesh(self):
        """Goal: tokens, log-probs and metrics of tp=2 dp=2 equal those of one daemon; the order of rows is kept."""
        results = []
        for count, mesh in ((1, {}), (4, {"tp": 2})):
            _, client = self.group(count, **mesh)
            batch = client.rollout.generate_sequences(prompts(8), {"response_length": 5, "seed": 3}).batch
            tokens = batch.select("input_ids", "attention_mask", "position_ids", "responses")
            plan = rankd.make_plan([8] * 8, client.mesh("actor").size["dp"], max_token_len=17)
            log_probs = client.actor.compute_log_prob(tokens, plan).batch
            results.append((batch, log_probs, client.actor.get_mesh_info()))
            client.close()
        for name in results[0][0]:
            if name != "rollout_log_probs":
                np.testing.assert_array_equal(results[0][0][name], results[1][0][name])
        np.testing.assert_allclose(results[0][1]["old_log_probs"], results[1][1]["old_log_probs"], atol=2e-6)
        np.testing.assert_allclose(results[1][1]["old_log_probs"], results[1][0]["rollout_log_probs"], atol=2e-6)
        self.assertEqual([output.meta["groups"]["tp"] for output in results[1][2].outputs], [[0, 1], [0, 1], [2, 3], [2, 3]])

    def test_methods_are_those_of_rankctl(self):
        """Goal: every method of the table has a typed function with its options in the docstring."""
        _, client = self.group(1)
        table = json.loads(subprocess.run([BIN / "rankctl", "methods", "--output", "json"], check=True,
                                          capture_output=True).stdout)["methods"]
        self.assertEqual([method.name for method in client.methods()], [method["name"] for method in table])
        for method in table:
            for role in method["roles"]:
                function = getattr(getattr(client, role), method["name"])
                for option in method["options"]:
                    self.assertIn(f" {option['name']}  {option['type']}", function.__doc__)

    def test_refusals(self):
        """Goal: an invalid call raises an error with its reason, from the client or the daemon, and the next
        call runs."""
        _, client = self.group(2)
        generate = client.rollout.generate_sequences
        self.assert_refused("NOT_FOUND", "UNKNOWN_METHOD", client.call, "actor.fly")
        self.assert_refused("INVALID_ARGUMENT", "BAD_FIELD", client.call, "rollout.update_actor")
        self.assert_refused("INVALID_ARGUMENT", "BAD_FIELD", generate, prompts(), {"response_length": 2, "no_option": 1})
        self.assert_refused("INVALID_ARGUMENT", "BAD_FIELD", generate, prompts(), {"response_length": "2"})
        self.assert_refused("INVALID_ARGUMENT", "BAD_FIELD", generate, {**prompts(), "more": np.zeros(4)},
                            {"response_length": 2})
        with self.assertRaisesRegex(ValueError, "3 rows do not divide by 2"):
            generate(prompts(3), {"response_length": 2})
        with self.assertRaisesRegex(ValueError, "needs a plan"):
            client.call("actor.compute_log_prob", prompts())
        with self.assertRaisesRegex(ValueError, "'critic' has no mesh"):
            client.critic.get_mesh_info()
        self.assertEqual(generate(prompts(), {"response_length": 2}).batch.num_rows, 4)

    def test_want_and_progress(self):
        """Goal: only the requested columns come back, and progress is reported."""
        _, client = self.group(1)
        seen = []
        result = client.rollout.generate_sequences(prompts(), {"response_length": 2000, "ignore_eos": True},
                                                   want=["responses"],
                                                   on_progress=lambda rank, progress: seen.append((rank, progress.phase)))
        self.assertEqual(list(result.batch), ["responses"])
        self.assertIn((0, "generate"), seen)

    def test_progress_that_raises(self):
        """Goal: an error of the program's own function ends the call on the daemons and is raised by it; the
        group remains usable."""
        _, client = self.group(1)

        def complain(rank, progress):
            raise KeyError("no such bar")

        with self.assertRaisesRegex(KeyError, "no such bar"):
            client.rollout.generate_sequences(prompts(), ENDLESS, on_progress=complain)
        self.assertEqual(client.rollout.generate_sequences(prompts(), {"response_length": 2}).batch.num_rows, 4)

    def test_timeout(self):
        _, client = self.group(1)
        self.assert_refused("DEADLINE_EXCEEDED", "WATCHDOG", client.rollout.generate_sequences, prompts(), ENDLESS,
                            timeout_s=0.5)


class Futures(DaemonTest):
    def test_two_groups_in_parallel(self):
        """Goal: queued calls on two groups at once give the same results as separate calls; the fast group's
        call ends while the slow group's runs."""
        groups = [self.group(1)[1], self.group(2)[1]]
        expected = [groups[0].rollout.generate_sequences(prompts(), {"response_length": 4, "seed": seed}).batch
                    for seed in range(10)]
        futures = {groups[i % 2].rollout.generate_sequences_async(prompts(), {"response_length": 4, "seed": i // 2}): i // 2
                   for i in range(20)}
        for future in concurrent.futures.as_completed(futures, timeout=60 * FACTOR):
            np.testing.assert_array_equal(future.result().batch["responses"], expected[futures[future]]["responses"])
        slow = groups[0].rollout.generate_sequences_async(prompts(), ENDLESS)
        groups[1].rollout.generate_sequences(prompts(), {"response_length": 4})
        self.assertFalse(slow.done())
        self.assert_refused("FAILED_PRECONDITION", "", groups[0].configure, {"actor": rankd.Mesh()})
        self.assertTrue(slow.cancel("enough"))
        self.assert_refused("CANCELLED", "", slow.result)
        self.assertFalse(slow.cancel())

    def test_cancel(self):
        """Goal: a running call and a queued one are cancelled within seconds; the group remains usable."""
        _, client = self.group(2)
        calls = [client.rollout.generate_sequences_async(prompts(), ENDLESS) for _ in range(2)]
        last = client.rollout.generate_sequences_async(prompts(), {"response_length": 2})
        self.assertEqual(concurrent.futures.wait([*calls, last], timeout=0.5).done, set())
        begin = time.monotonic()
        for call in calls:
            call.cancel("the test says so")
        for call in calls:
            self.assertIn("the test says so", self.assert_refused("CANCELLED", "", call.result).message)
        self.assertEqual(last.result().batch.num_rows, 4)
        self.assertLess(time.monotonic() - begin, 8 * FACTOR)

    def test_killed_daemon(self):
        """Goal: a daemon that is killed in a call: PEER_LOST names it within seconds, queued calls end, the
        client requires a new claim; the surviving daemon can be claimed and works."""
        daemons, client = self.group(2)
        calls = [client.rollout.generate_sequences_async(prompts(), ENDLESS) for _ in range(2)]
        time.sleep(1)
        begin = time.monotonic()
        os.kill(daemons.procs[1].pid, signal.SIGKILL)
        error = self.assert_refused("ABORTED", "PEER_LOST", calls[0].result)
        self.assertEqual((error.rank, error.address), (1, daemons.hosts[1]))
        self.assertIsInstance(calls[1].exception(), rankd.RankdError)
        self.assertLess(time.monotonic() - begin, 15 * FACTOR)
        self.assertIn("claim", self.assert_refused("FAILED_PRECONDITION", "", client.call, "actor.get_mesh_info").message)
        client.close()
        survivor = self.connect(daemons.hosts[:1])
        survivor.claim()
        survivor.configure({"actor": rankd.Mesh(), "rollout": rankd.Mesh()})
        survivor.actor.init_model({"model.hf_config": MODEL})


if __name__ == "__main__":
    unittest.main()
