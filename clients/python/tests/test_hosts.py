"""Lists of hosts: the tables of cases that rankctl's own tests read."""

import json
import os
import pathlib
import socket
import tempfile
import unittest
from unittest import mock

import rankd
from rankd import _hosts

TABLES = pathlib.Path(__file__).parents[3] / "tests" / "golden" / "hosts"
CASES = json.loads((TABLES / "cases.json").read_text())


def slurm(row):
    """Sets only the environment of a job in a table."""
    names = {"nodes": "SLURM_JOB_NODELIST", "tasks": "SLURM_TASKS_PER_NODE", "ntasks": "SLURM_NTASKS_PER_NODE",
             "step": "SLURM_STEP_ID"}
    others = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return mock.patch.dict(os.environ, {**others, **{names[key]: row[key] for key in names if key in row}}, clear=True)


class Hosts(unittest.TestCase):
    def test_good_lists_keep_their_order(self):
        for row in CASES["accepted"]:
            with self.subTest(row["label"]), slurm({}):
                self.assertEqual(_hosts.parse_hosts(row["text"]), row["addresses"])
                self.assertEqual(_hosts.parse_hosts(list(_hosts.split_terms(row["text"]))), row["addresses"])

    def test_bad_lists_are_refused_with_the_address(self):
        kinds = {"INVALID_ARGUMENT": ValueError, "RESOURCE_EXHAUSTED": ValueError, "UNAVAILABLE": rankd.RankdError,
                 "NOT_FOUND": FileNotFoundError}
        for row in CASES["refused"]:
            with self.subTest(row["label"]), slurm({}), self.assertRaises(kinds[row["code"]]) as caught:
                _hosts.parse_hosts(row["text"])
            self.assertIn(row["message"], str(caught.exception))

    def test_ranges_are_expanded_as_scontrol_does(self):
        lines = [line.split("\t") for line in (TABLES / "scontrol.tsv").read_text().splitlines() if "\t" in line]
        self.assertEqual(len(lines), 19)
        for text, names in lines:
            with self.subTest(text):
                found = [name for term in _hosts.split_terms(text) if term for name in _hosts.expand(term)]
                self.assertEqual(",".join(found), names)

    def test_bad_ranges_are_named_with_their_character(self):
        for row in CASES["bad_ranges"]:
            with self.subTest(row["term"]), self.assertRaises(ValueError) as caught:
                list(_hosts.expand(row["term"], 100))
            self.assertIn(row["message"], str(caught.exception))

    def test_slurm_jobs(self):
        for row in CASES["slurm"]:
            with self.subTest(row["label"]), slurm(row):
                self.assertEqual(",".join(_hosts.parse_hosts("slurm:" + row["ports"])), row["addresses"])
        for row in CASES["bad_slurm"]:
            with self.subTest(row["message"]), slurm(row), self.assertRaises(ValueError) as caught:
                _hosts.parse_hosts("slurm:" + row["ports"])
            self.assertIn(row["message"], str(caught.exception))

    def test_old_variable_of_slurm(self):
        with slurm({}), mock.patch.dict(os.environ, {"SLURM_NODELIST": "a[1-2]"}):
            self.assertEqual(_hosts.parse_hosts("slurm:7000"), ["a1:7000", "a2:7000"])

    def test_addresses_of_a_name_are_sorted_and_told_once(self):
        """Goal: every program gets the same ranks, independent of the order in the DNS response."""
        found = [(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
                 for text in ("10.0.0.10", "fd00::2", "10.0.0.9", "192.168.0.1", "fd00::1", "10.0.0.9", "fd00::2")]
        self.assertEqual(_hosts.sorted_addresses(found, 7000),
                         ["10.0.0.9:7000", "10.0.0.10:7000", "192.168.0.1:7000", "[fd00::1]:7000", "[fd00::2]:7000"])

    def test_localhost_needs_no_resolver(self):
        """Goal: localhost is a number before a resolver is asked, and no other name is."""
        asked = []

        def resolve(name, *_, **__):
            asked.append(name)
            return [(socket.AF_INET, 0, 0, "", ("127.0.0.1", 0))]

        with mock.patch("socket.getaddrinfo", resolve):
            for name in ("localhost", "LocalHost", "localhost.", "localhost1"):
                self.assertEqual(_hosts.parse_hosts(f"dns:{name}:7"), ["127.0.0.1:7"])
        self.assertEqual(asked, ["127.0.0.1"] * 3 + ["localhost1"])

    def test_files(self):
        """Goal: a line of a file has terms and comments, and errors name the line number."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "hosts"
            path.write_text("# the first rack\nnode1\n  node[2-3]:7001  # spare\n\nunix:/a,unix:/b ,\n")
            self.assertEqual(_hosts.parse_hosts(f"first:1,@{path},last:2"),
                             ["first:1", "node1:7000", "node2:7001", "node3:7001", "unix:/a", "unix:/b", "last:2"])
            path.write_text("node1\n\nnode2:\n")
            with self.assertRaisesRegex(ValueError, "hosts:3: address 'node2:'"):
                _hosts.parse_hosts(f"@{path}")

    def test_socket_names(self):
        name = "unix:/" + "x" * 106
        self.assertEqual(_hosts.parse_hosts(name), [name])
        with self.assertRaisesRegex(ValueError, "socket name of 108 bytes"):
            _hosts.parse_hosts(name + "x")


if __name__ == "__main__":
    unittest.main()
