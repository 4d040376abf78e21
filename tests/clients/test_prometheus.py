"""Goal: a real Prometheus scrapes daemons during a training run, its linter accepts their metrics, and every query of the
dashboard evaluates, with data where a CPU run has some. Method: prometheus and promtool of the distribution; exit code 77
without them.

Usage: test_prometheus.py RANKD RANKCTL SOURCE_FOLDER
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from stock import Daemon, TIMEOUT_S

RANKD, RANKCTL, SOURCES = sys.argv[1:4]
del sys.argv[1:4]
# Families without samples in a run on CPUs in which nothing fails.
WITHOUT_DATA = re.compile(r"rankd_gpu_|rankd_method_failures_total|rankd_comm_waiting_seconds|rankd_method_running_seconds"
                          r"|rankd_method_progress_ratio|rankd_rpc_in_flight")
RATE_INTERVAL_S = 5


def fetch(address, path, **query):
    url = f"http://{address}{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return answer.read().decode()


class Prometheus:
    """Scrapes these addresses four times a second."""

    def __init__(self, targets):
        self.targets = targets

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        config = os.path.join(self.folder.name, "prometheus.yml")
        with open(config, "w") as file:  # JSON is YAML
            json.dump({"global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"},
                       "scrape_configs": [{"job_name": "rankd", "static_configs": [{"targets": self.targets}]}]}, file)
        subprocess.run(["promtool", "check", "config", config], check=True, stdout=subprocess.DEVNULL)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = "127.0.0.1:%d" % free.getsockname()[1]
        self.log = open(os.path.join(self.folder.name, "log"), "w+")
        self.process = subprocess.Popen(
            ["prometheus", "--config.file=" + config, "--web.listen-address=" + self.address,
             "--storage.tsdb.path=" + os.path.join(self.folder.name, "data")], stdout=self.log, stderr=self.log)
        try:
            self.wait_for_targets()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_for_targets(self):
        end = time.monotonic() + TIMEOUT_S
        while self.num_up() < len(self.targets):  # it looks for targets every 5 s
            assert self.process.poll() is None and time.monotonic() < end, self.read_log()
            time.sleep(0.1)

    def num_up(self):
        try:
            targets = json.loads(fetch(self.address, "/api/v1/targets"))["data"]["activeTargets"]
        except (urllib.error.URLError, ConnectionError):
            return 0  # not ready yet
        return sum(target["health"] == "up" for target in targets)

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def query(self, text, begin, end):
        answer = json.loads(fetch(self.address, "/api/v1/query_range", query=text, start=begin, end=end, step=0.5))
        assert answer["status"] == "success", (text, answer)
        return answer["data"]["result"]

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(TIMEOUT_S)
        self.log.close()
        self.folder.cleanup()


def dashboard_queries():
    with open(os.path.join(SOURCES, "deploy/grafana/rankd.json")) as file:
        dashboard = json.load(file)
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", f"{RATE_INTERVAL_S}s").replace("$instance", ".*")
            yield panel["title"], text


class Run(unittest.TestCase):
    """Two daemons that train the digits example for a few seconds."""

    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        flags = ("--metrics.listen=127.0.0.1:0", "--cpu.num_threads=1", f'--ckpt.roots=["{folder}"]')
        daemons = [cls.enterClassContext(Daemon(RANKD, *flags)) for _ in range(2)]
        cls.targets = [daemon.addresses["metrics.listen"] for daemon in daemons]
        cls.prometheus = cls.enterClassContext(Prometheus(cls.targets))
        cls.begin = time.time()
        subprocess.run(
            [RANKCTL, "run", os.path.join(SOURCES, "examples/digits/grpo.json"), "--run-dir", os.path.join(folder, "run"),
             "--hosts", ",".join(daemon.address for daemon in daemons), "data.train_batch_size=4",
             "actor_rollout_ref.rollout.n=32", "actor_rollout_ref.rollout.max_num_seqs=8",
             "actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.total_training_steps=10", "trainer.save_freq=5"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1)  # the last scrapes
        cls.end = time.time()

    def test_all_scrapes_succeed(self):
        series = self.prometheus.query('min_over_time(up{job="rankd"}[2s])', self.begin + 2, self.end)
        self.assertEqual(sorted(one["metric"]["instance"] for one in series), sorted(self.targets))
        for one in series:
            self.assertEqual({float(value) for _, value in one["values"]}, {1.0})

    def test_the_linter_accepts_the_metrics(self):
        done = subprocess.run(["promtool", "check", "metrics"], input=fetch(self.targets[0], "/metrics"), text=True,
                              capture_output=True, timeout=TIMEOUT_S)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_counters_and_gauges_have_the_values_of_the_run(self):
        last = {}
        for metric in ("rankd_method_calls_total", "rankd_method_duration_seconds_count"):
            series = self.prometheus.query(metric + '{role="actor",method="update_actor"}', self.begin, self.end)
            last[metric] = {(one["metric"]["instance"], float(one["values"][-1][1])) for one in series}
        for values in last.values():
            self.assertEqual(values, {(target, 10.0) for target in self.targets})

    def test_every_query_of_the_dashboard_has_data(self):
        empty = []
        for title, text in dashboard_queries():
            series = self.prometheus.query(text, self.begin, self.end)
            if not series and not WITHOUT_DATA.search(text):
                empty.append((title, text))
        self.assertEqual(empty, [])


if __name__ == "__main__":
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        print("skipped: prometheus is not installed")
        sys.exit(77)
    unittest.main()
