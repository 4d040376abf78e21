"""Goal: what metrics.listen serves is what Prometheus reads, and nobody who scrapes, well or badly, disturbs the daemon.
Method: the stock parser of prometheus_client, and peers that do what no scraper should.

Usage: test_metrics.py RANKD RANKCTL SOURCE_FOLDER
"""
import concurrent.futures
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import grpc
from prometheus_client.parser import text_string_to_metric_families

from stock import Daemon, Reflection, TIMEOUT_S, bearer, refused_start

RANKD, RANKCTL, SOURCES = sys.argv[1:4]
del sys.argv[1:4]
METRICS = ("--metrics.listen=127.0.0.1:0",)
NAME = re.compile(r"^(rankd|process)_[a-z0-9_]*[a-z0-9]$")
# Base units, and words for figures without a unit; the unit is the last word, before "total" of a
# counter.
UNITS = ("bytes", "seconds", "ratio", "info", "celsius", "watts", "hertz")


def fetch(address, path="/metrics", method="GET", data=None):
    request = urllib.request.Request(f"http://{address}{path}", data=data, method=method)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return answer.headers, answer.read().decode()


def parse(text):
    """Families by name; fails where a family comes twice or a sample stands outside of its own."""
    families = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in families, family.name
        families[family.name] = family
    samples = sum(len(family.samples) for family in families.values())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert samples == len(lines), (samples, len(lines))
    assert len(families) == text.count("# TYPE ") == text.count("# HELP ")
    return families


def scrape(daemon):
    return parse(fetch(daemon.addresses["metrics.listen"])[1])


def value(families, family, name=None, **labels):
    """The one sample of that name whose labels include these."""
    found = [sample.value for sample in families[family].samples
             if sample.name == (name or family) and labels.items() <= sample.labels.items()]
    assert len(found) == 1, (family, labels, found)
    return found[0]


class Text(unittest.TestCase):
    def setUp(self):
        self.daemon = self.enterContext(Daemon(RANKD, *METRICS))
        self.address = self.daemon.addresses["metrics.listen"]

    def test_names_types_and_help(self):
        headers, text = fetch(self.address)
        self.assertEqual(headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        for name, family in parse(text).items():
            self.assertRegex(name, NAME)
            self.assertTrue(family.documentation.endswith("."), name)
            self.assertNotEqual(family.type, "unknown", name)
            for unit in ("_ms", "_milliseconds", "_mb", "_kib", "_percent"):
                self.assertFalse(name.endswith(unit), name)
            for sample in family.samples:
                self.assertFalse(math.isnan(sample.value), sample)
                self.assertEqual(family.type == "counter", sample.name.endswith("_total"), sample)

    def test_the_daemon_describes_itself(self):
        families = scrape(self.daemon)
        self.assertEqual(value(families, "rankd_build_info", device="cpu", slot="0"), 1)
        self.assertEqual(value(families, "rankd_state", state="UNCONFIGURED"), 1)
        self.assertEqual(sum(sample.value for sample in families["rankd_state"].samples), 1)
        self.assertEqual(value(families, "rankd_lease_held"), 0)
        self.assertAlmostEqual(value(families, "process_start_time_seconds") + value(families, "rankd_uptime_seconds"),
                               time.time(), delta=5)
        with open(f"/proc/{self.daemon.process.pid}/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.assertLess(abs(value(families, "process_resident_memory_bytes") - resident), 32 << 20)
        self.assertGreater(value(families, "process_open_fds"), 5)
        self.assertFalse([name for name in families if name.startswith("rankd_gpu")])  # none here

    def test_calls_are_counted(self):
        with grpc.insecure_channel(self.daemon.address) as channel:
            reflection = Reflection(channel)
            sent = sum(reflection.call("rankd.v1.Worker", "GetStatus").ByteSize() for _ in range(5))
            with self.assertRaises(grpc.RpcError):
                reflection.call("rankd.v1.Worker", "AcquireLease", {"driver_id": "", "epoch": 1})
            reflection.call("rankd.v1.Worker", "AcquireLease", {"driver_id": "x", "epoch": 7, "ttl_ms": 30000})
            with self.assertRaises(grpc.RpcError):
                channel.unary_unary("/no/path")(b"", timeout=TIMEOUT_S)
            families = scrape(self.daemon)
            call = {"rpc": "rankd.v1.Worker/GetStatus"}
            self.assertEqual(value(families, "rankd_rpc_requests", "rankd_rpc_requests_total", code="OK", **call), 5)
            self.assertEqual(value(families, "rankd_rpc_duration_seconds", "rankd_rpc_duration_seconds_count", **call), 5)
            self.assertEqual(value(families, "rankd_rpc_sent_bytes", "rankd_rpc_sent_bytes_total", **call),
                             sent)
            lease = {"rpc": "rankd.v1.Worker/AcquireLease"}
            for code in ("OK", "INVALID_ARGUMENT"):
                self.assertEqual(value(families, "rankd_rpc_requests", "rankd_rpc_requests_total", code=code, **lease), 1)
            self.assertEqual(value(families, "rankd_rpc_requests", "rankd_rpc_requests_total", rpc="other",
                                   code="UNIMPLEMENTED"), 1)
            self.assertEqual(value(families, "rankd_lease_held"), 1)
            self.assertEqual(value(families, "rankd_lease_epoch"), 7)
            self.assertTrue(20 < value(families, "rankd_lease_remaining_seconds") <= 30)
            self.assertGreaterEqual(value(families, "rankd_connections"), 1)

    def test_reloads_that_fail_are_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rankd.json")
            with open(path, "w") as file:
                file.write("{}")
            with Daemon(RANKD, "--config", path, *METRICS) as daemon:
                with open(path, "w") as file:
                    file.write("{")
                daemon.process.send_signal(1)
                end = time.monotonic() + TIMEOUT_S
                while value(scrape(daemon), "rankd_config_reload_failures", "rankd_config_reload_failures_total") != 1:
                    self.assertLess(time.monotonic(), end)


class Peers(unittest.TestCase):
    def setUp(self):
        self.daemon = self.enterContext(Daemon(RANKD, *METRICS))
        self.address = self.daemon.addresses["metrics.listen"]
        self.host, _, port = self.address.rpartition(":")
        self.port = int(port)

    def connect(self):
        return socket.create_connection((self.host, self.port), TIMEOUT_S)

    def test_nothing_else_is_served(self):
        for path, method, data, code in (("/", "GET", None, 404), ("/metricsx", "GET", None, 404),
                                         ("/metrics/", "GET", None, 404), ("/../metrics", "GET", None, 404),
                                         ("/metrics", "POST", b"x" * 100000, 405), ("/metrics", "DELETE", None, 405)):
            with self.assertRaises(urllib.error.HTTPError) as raised:
                fetch(self.address, path, method, data)
            self.assertEqual(raised.exception.code, code, (path, method))
            raised.exception.close()
        self.assertEqual(fetch(self.address, method="HEAD")[1], "")

    def test_garbage_is_refused(self):
        cases = (b"\0\1\2\3" * 100 + b"\r\n\r\n", b"GET /metrics\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n",
                 b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 100000 + b"\r\n\r\n", b"GET " + b"/" * 100000,
                 b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        for data in cases:
            with self.connect() as peer:
                try:
                    peer.sendall(data)
                    peer.shutdown(socket.SHUT_WR)
                    answer = peer.recv(1 << 16)
                except OSError:  # cut already
                    answer = b""
                self.assertNotIn(b"rankd_state", answer, data[:40])
        self.assertIn("rankd_state", scrape(self.daemon))

    def test_several_scrapes_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            texts = list(pool.map(lambda _: fetch(self.address)[1], range(200)))
        for text in texts:
            self.assertEqual(value(parse(text), "rankd_state", state="UNCONFIGURED"), 1)
        counts = sorted(int(value(parse(text), "rankd_scrapes", "rankd_scrapes_total")) for text in texts)
        self.assertEqual(counts, list(range(1, 201)))

    def test_a_client_that_does_not_read_disturbs_nobody(self):
        """Peers that ask and never read, and peers that never end their request; calls and other scrapes go on."""
        peers = [self.connect() for _ in range(4)]
        for peer in peers[:2]:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        for peer in peers[2:]:
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        with grpc.insecure_channel(self.daemon.address) as channel:
            reflection = Reflection(channel)
            for _ in range(20):
                self.assertEqual(reflection.call("rankd.v1.Worker", "GetStatus").state, "UNCONFIGURED")
                self.assertIn("rankd_state", scrape(self.daemon))
        for peer in peers[2:]:  # closed after 5 s of silence
            self.assertLess(len(peer.recv(1 << 16)), 1000)
        for peer in peers:
            peer.close()

    def test_slow_requests_hold_no_places(self):
        """Peers that send a byte from time to time lose their place 5 s after they came."""
        slow = [self.connect() for _ in range(16)]
        end = time.monotonic() + 8
        while time.monotonic() < end:
            for peer in slow:
                try:
                    peer.send(b"G")
                except OSError:
                    pass
            time.sleep(1)
        for _ in range(4):
            self.assertIn("rankd_state", scrape(self.daemon))
        for peer in slow:
            peer.close()

    def test_the_daemon_ends_under_scrapes(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            def again(_):
                try:
                    while True:
                        fetch(self.address)
                except (OSError, urllib.error.URLError):
                    return True

            ends = [pool.submit(again, i) for i in range(4)]
            time.sleep(0.3)
            self.daemon.stop()
            self.assertEqual(self.daemon.process.wait(TIMEOUT_S), 0)
            self.assertTrue(all(end.result(TIMEOUT_S) for end in ends))


class Start(unittest.TestCase):
    def test_an_address_that_is_taken_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            code, error, out = refused_start(RANKD, "--metrics.listen=" + address)
            self.assertEqual((code, out), (4, ""))
            self.assertIn("metrics.listen", error)
            self.assertIn(address, error)

    def test_others_reach_it_only_when_that_is_said(self):
        for flags in ((), ("--health.listen=127.0.0.1:0",)):
            code, error, _ = refused_start(RANKD, "--metrics.listen=0.0.0.0:0", *flags)
            self.assertEqual(code, 2)
            self.assertIn("metrics.listen", error)
            self.assertIn("metrics.insecure", error)
        with Daemon(RANKD, "--metrics.listen=0.0.0.0:0", "--metrics.insecure=true") as daemon:
            daemon.addresses["metrics.listen"] = daemon.addresses["metrics.listen"].replace("0.0.0.0", "127.0.0.1")
            self.assertEqual(value(scrape(daemon), "rankd_insecure"), 0)

    def test_two_keys_with_one_address_are_refused(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = "127.0.0.1:%d" % free.getsockname()[1]
        for flags in (("--health.listen=" + address,), ("--rpc.listen=" + address,)):
            code, error, _ = refused_start(RANKD, "--metrics.listen=" + address, *flags)
            self.assertEqual(code, 2)
            self.assertIn("metrics.listen", error)

    def test_bad_addresses_are_named(self):
        for text in ("nonsense", "127.0.0.1:99999", "unix:relative"):
            code, error, _ = refused_start(RANKD, "--metrics.listen=" + text)
            self.assertEqual(code, 2)
            self.assertEqual(error.count("metrics.listen"), 1, error)


class Page(unittest.TestCase):
    def test_the_page_has_every_metric(self):
        """docs/metrics.md has one row a metric of the table, with its type and help, and no other."""
        with open(os.path.join(SOURCES, "daemon/metrics/metrics.def")) as file:
            table = re.sub(r'"\s+"', "", file.read().replace("\\\n", " "))
        rows = re.findall(r'X\(\w+, "(\w+)",\s*(\w+),\s*"([^"]*)"\s*\)', table)
        self.assertEqual(len(rows), len(re.findall(r"X\([A-Z]", table)))
        with open(os.path.join(SOURCES, "docs/metrics.md")) as file:
            page = re.findall(r"^\| `(\w+)` \| (\w+) \| (?:[^|]*) \| ([^|]*) \|$", file.read(), re.M)
        self.assertEqual(page, [(name, kind.lower(), text) for name, kind, text in rows])


class Dashboard(unittest.TestCase):
    def test_panels_have_places_of_their_own(self):
        with open(os.path.join(SOURCES, "deploy/grafana/rankd.json")) as file:
            dashboard = json.load(file)
        panels = dashboard["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        cells = set()
        for panel in panels:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    self.assertNotIn((x, y), cells, panel["title"])
                    cells.add((x, y))
        variables = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval"}
        self.assertLessEqual(set(re.findall(r"\$\{?(\w+)", json.dumps(panels))), variables)


class Run(unittest.TestCase):
    """The figures of a training run, and that the dashboard and the page name metrics that are there."""

    SAMPLES = 32  # for each of 4 prompts

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            flags = (*METRICS, "--cpu.num_threads=1", f'--ckpt.roots=["{folder}"]')
            with Daemon(RANKD, *flags) as daemon, Daemon(RANKD, *flags) as other:
                cls.run_job(folder, daemon, other)

    @classmethod
    def run_job(cls, folder, daemon, other):
        run = subprocess.Popen(
            [RANKCTL, "run", os.path.join(SOURCES, "examples/digits/grpo.json"), "--hosts", f"{daemon.address},{other.address}",
             "--run-dir", os.path.join(folder, "run"), "data.train_batch_size=4",
             f"actor_rollout_ref.rollout.n={cls.SAMPLES}", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
             "actor_rollout_ref.rollout.max_num_seqs=8",  # many decode steps, so that scrapes happen during them
             "trainer.total_training_steps=3", "trainer.save_freq=2", "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
             "actor_rollout_ref.rollout.tensor_model_parallel_size=2"],
            stdout=subprocess.DEVNULL)
        cls.during, cls.longest_s = [], 0
        while run.poll() is None:
            begin = time.monotonic()
            cls.during.append(scrape(daemon))
            cls.longest_s = max(cls.longest_s, time.monotonic() - begin)
            time.sleep(0.01)
        assert run.returncode == 0
        with grpc.insecure_channel(daemon.address) as channel:
            reflection = Reflection(channel)
            reflection.call("grpc.health.v1.Health", "Check")
        cls.families = scrape(daemon)

    def test_methods_are_counted(self):
        update = {"role": "actor", "method": "update_actor"}
        calls = value(self.families, "rankd_method_calls", "rankd_method_calls_total", code="OK", **update)
        self.assertEqual(calls, 3)
        self.assertEqual(value(self.families, "rankd_method_duration_seconds",
                               "rankd_method_duration_seconds_count", **update), 3)
        self.assertGreater(value(self.families, "rankd_method_duration_seconds",
                                 "rankd_method_duration_seconds_sum", **update), 0)

    def test_the_last_step_is_there(self):
        for metric in ("actor/pg_loss", "actor/grad_norm", "actor/lr"):
            self.assertTrue(math.isfinite(value(self.families, "rankd_method_metric", metric=metric, role="actor",
                                                method="update_actor")))
        self.assertEqual(value(self.families, "rankd_role_weight_version", role="actor"), 6)  # two mini-batches per step

    def test_scrapes_do_not_wait_for_the_method_that_runs(self):
        busy = [families for families in self.during if "rankd_method_running_seconds" in families]
        self.assertGreater(len(busy), 3)
        self.assertTrue(any(value(families, "rankd_state", state="BUSY") for families in busy))
        self.assertTrue(all(value(families, "rankd_queue_calls") >= 1 for families in busy))
        self.assertLess(self.longest_s, TIMEOUT_S / 10)

    def test_tokens_and_first_tokens_are_counted(self):
        """Three steps; a response has at most 8 tokens."""
        count = 3 * 4 * self.SAMPLES
        sampled = value(self.families, "rankd_method_tokens", "rankd_method_tokens_total", role="rollout",
                        method="generate_sequences")
        self.assertTrue(count <= sampled <= count * 8, sampled)
        self.assertGreater(value(self.families, "rankd_method_tokens", "rankd_method_tokens_total", role="actor",
                                 method="update_actor"), sampled)
        prompt = value(self.families, "rankd_rollout_prompt_tokens", "rankd_rollout_prompt_tokens_total")
        self.assertTrue(count <= prompt <= count * 8, prompt)
        first = "rankd_rollout_time_to_first_token_seconds"
        self.assertEqual(value(self.families, first, first + "_count"), count)
        total = value(self.families, first, first + "_sum")
        self.assertTrue(0 < total < count * value(self.families, "rankd_uptime_seconds"), total)
        for name in ("rankd_rollout_running_sequences", "rankd_rollout_waiting_sequences", "rankd_kv_cache_usage_ratio"):
            self.assertEqual(value(self.families, name), 0)
        self.assertEqual(value(self.families, "rankd_watchdog_trips", "rankd_watchdog_trips_total"), 0)

    def test_the_kv_cache_is_in_use_while_sequences_run(self):
        """What was seen during the run: a used cache goes with running sequences, and is never more than full."""
        seen = [(value(families, "rankd_rollout_running_sequences"), value(families, "rankd_kv_cache_usage_ratio"))
                for families in self.during if "rankd_kv_cache_usage_ratio" in families]
        self.assertTrue(any(running > 0 for running, _ in seen))
        for running, used in seen:
            self.assertEqual(running > 0, used > 0)
            self.assertLessEqual(used, 1)

    def test_checkpoints_are_counted(self):
        """Saves at steps 2 and 3, the last."""
        duration = "rankd_checkpoint_duration_seconds"
        self.assertEqual(value(self.families, duration, duration + "_count"), 2)
        self.assertGreater(value(self.families, "rankd_checkpoint_written_bytes",
                                 "rankd_checkpoint_written_bytes_total"), 1000)
        self.assertLess(abs(value(self.families, "rankd_checkpoint_last_success_timestamp_seconds") - time.time()), 600)

    def test_memory_is_told_by_kind(self):
        for kind in ("parameters", "gradients", "optimizer"):
            self.assertGreater(value(self.families, "rankd_role_memory_bytes", role="actor", kind=kind), 0)
        self.assertGreater(value(self.families, "rankd_role_memory_bytes", role="rollout", kind="kv_cache"), 0)
        held = sum(sample.value for sample in self.families["rankd_role_memory_bytes"].samples)
        self.assertLessEqual(value(self.families, "rankd_device_memory_allocated_bytes"),
                             value(self.families, "rankd_device_memory_peak_bytes"))
        self.assertLessEqual(held, value(self.families, "rankd_device_memory_total_bytes"))

    def test_collectives_are_counted_and_timed(self):
        """Two tp ranks: all-reduces in every pass; the counts outlive the communicators, which are gone by now."""
        operation = {"operation": "all_reduce"}
        self.assertGreater(value(self.families, "rankd_comm_operations", "rankd_comm_operations_total", **operation), 10)
        self.assertGreater(value(self.families, "rankd_comm_seconds", "rankd_comm_seconds_total", **operation), 0)
        self.assertEqual(value(self.families, "rankd_world_size"), 2)
        counts = [value(families, "rankd_comm_operations", "rankd_comm_operations_total", **operation)
                  for families in self.during if "rankd_comm_operations" in families]
        self.assertEqual(counts, sorted(counts))

    def test_the_dashboard_names_what_is_there(self):
        """Every metric of a panel is in the text of this run, and every label of its query and legend is one of the
        metric's; metrics of GPUs and of failures, which are not here, are in the table at least."""
        with open(os.path.join(SOURCES, "deploy/grafana/rankd.json")) as file:
            panels = json.load(file)["panels"]
        with open(os.path.join(SOURCES, "daemon/metrics/metrics.def")) as file:
            table = set(re.findall(r'"((?:rankd|process)_\w+)"', file.read()))
        labels = {}  # of every observed sample, by name
        for families in [*self.during, self.families]:
            for family in families.values():
                for sample in family.samples:
                    labels.setdefault(sample.name, set()).update(sample.labels, ["instance"])
        targets = [(panel["title"], target) for panel in panels for target in panel.get("targets", ())]
        self.assertGreater(len(targets), 40)
        for title, target in targets:
            names = set(re.findall(r"\b(?:rankd|process)_\w+", target["expr"]))
            self.assertTrue(names, title)
            for name in names:
                if name.startswith("rankd_gpu_") or name == "rankd_method_failures_total":
                    self.assertIn(name, table, title)
                    continue
                self.assertIn(name, labels, title)
                used = re.findall(r"{{(\w+)}}", target["legendFormat"]) + re.findall(r"(\w+)=~?\"", target["expr"])
                for group in re.findall(r"by \(([^)]*)\)", target["expr"]):
                    used += group.split(", ")
                self.assertLessEqual(set(used), labels[name], (title, name))

    def test_bytes_went_in_and_out(self):
        execute = {"rpc": "rankd.v1.Worker/Execute"}
        self.assertGreater(value(self.families, "rankd_rpc_received_bytes", "rankd_rpc_received_bytes_total", **execute),
                           1000)
        self.assertGreater(value(self.families, "rankd_rpc_sent_bytes", "rankd_rpc_sent_bytes_total", **execute), 1000)


if __name__ == "__main__":
    unittest.main()
