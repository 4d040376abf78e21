"""The GRPO example: its first step is that of rankctl, and it learns."""

import json
import pathlib
import subprocess
import sys
import unittest

import rankd
from support import BIN, SOURCE, DaemonTest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
import grpo_digits  # noqa: E402

DIGITS = SOURCE / "examples" / "digits"
STEPS = 10


class Grpo(DaemonTest):
    def test_first_step_and_learning(self):
        """Goal: the example's first step on tp=2 dp=2 has the metrics of `rankctl run` with the same keys, and its reward
        doubles within ten steps. Method: rankctl takes the prompts in the order of the file, as the example does."""
        daemons = self.daemons(4)
        out = daemons.dir / "run"
        run = subprocess.run([BIN / "rankctl", "run", DIGITS / "grpo.json", "--local", "4", "--run-dir", out,
                              "data.shuffle=false", "trainer.total_training_steps=1"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        expected = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
        client = self.connect(daemons.hosts)
        client.claim()
        grpo_digits.setup(client, DIGITS, 2)
        history = grpo_digits.train(client, DIGITS, STEPS)
        for name in ("critic/score/mean", "actor/pg_loss", "actor/loss", "actor/entropy_loss", "actor/grad_norm",
                     "actor/pg_clipfrac", "actor/ppo_kl", "actor/lr"):
            self.assertAlmostEqual(history[0][name], expected[name], delta=1e-5 * max(1, abs(expected[name])), msg=name)
        self.assertGreater(history[-1]["critic/score/mean"], 2 * history[0]["critic/score/mean"])


if __name__ == "__main__":
    unittest.main()
