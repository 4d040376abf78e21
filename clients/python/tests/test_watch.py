"""Events of real daemons."""

import os
import signal
import threading
import time
import unittest

import rankd
from support import DaemonTest


class Watch(DaemonTest):
    def collect(self, client, until, **options):
        """Reads events on a thread until one satisfies the function; returns the thread and the list."""
        events = []

        def read():
            for event in client.watch(**options):
                events.append(event)
                if until(event):
                    return

        thread = threading.Thread(target=read)
        thread.start()
        while len([event for event in events if event.status is not None]) < client.world_size:
            time.sleep(0.01)
        return thread, events

    def test_calls_and_leases(self):
        """Goal: a watcher without a lease gets the events of another client's calls on every daemon, with
        fields, in order."""
        daemons = self.daemons(2)
        client, watcher = self.connect(daemons.hosts), self.connect(daemons.hosts)
        ended = []

        def is_last(event):
            if event.kind == "method_end" and event.fields["method"] == "actor.get_mesh_info":
                ended.append(event.rank)
            return len(ended) == 2

        thread, events = self.collect(watcher, is_last, kinds=["state", "lease", "method_start", "method_end"])
        client.claim()
        self.set_up(client)
        client.actor.get_mesh_info()
        thread.join(30)
        self.assertFalse(thread.is_alive())
        for rank in range(2):
            mine = [event for event in events if event.rank == rank]
            self.assertEqual((mine[0].kind, mine[0].id, mine[0].status.state), ("state", 0, "UNCONFIGURED"))
            ids = [event.id for event in mine[1:]]
            self.assertEqual(ids, sorted(ids))
            self.assertIn("lease", [event.kind for event in mine])
            calls = [(event.kind, event.fields["method"]) for event in mine if event.kind.startswith("method")]
            self.assertEqual(calls[:2], [("method_start", "actor.init_model"), ("method_end", "actor.init_model")])
            self.assertIn("READY", [event.fields.get("to") for event in mine if event.kind == "state"])

    def test_past_and_lost(self):
        """Goal: past events arrive and the loop ends; a killed daemon is reported, the others continue."""
        daemons, client = self.group(2)
        past = list(client.watch(["method_end"], from_event=1, past_only=True))
        self.assertEqual([event.fields["method"] for event in past if event.rank == 0 and event.kind == "method_end"],
                         ["actor.init_model", "rollout.init_model"])
        thread, events = self.collect(client, lambda event: event.kind == "lost")
        os.kill(daemons.procs[1].pid, signal.SIGKILL)
        thread.join(30)
        self.assertFalse(thread.is_alive())
        self.assertEqual((events[-1].kind, events[-1].rank), ("lost", 1))
        self.assertIn(daemons.hosts[1], events[-1].message)

    def test_refused(self):
        """Goal: an unknown kind ends the streams with an error."""
        events = list(self.connect(self.daemons(1).hosts).watch(["weather"]))
        self.assertEqual([event.kind for event in events], ["lost"])
        self.assertIn("INVALID_ARGUMENT", events[0].message)


if __name__ == "__main__":
    unittest.main()
