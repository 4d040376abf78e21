"""The GRPO example: its first step equals that of rankctl, and it learns."""

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
        """Goal: the example's first step on tp=2 dp=2 has the metrics of `rankctl run` with the same keys, and
        its reward doubles within ten steps. Method: rankctl takes the prompts in the order of the file, as the
        example does."""
        daemons = self.daemons(4)
        out = daemons.dir / "run"
        run = subprocess.run([BIN / "rankctl", "run", DIGITS / "grpo.json", "--local", "4", "--run-dir", out,
                              "data.shuffle=false", "trainer.total_training_steps=1"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        expected = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
        client = self.connect(daemons.hosts)
        client.claim()
        grpo_digits.setup(client)
        lines = (DIGITS / "train.jsonl").read_text().splitlines()
        history = [grpo_digits.step(client, lines, i) for i in range(STEPS)]
        self.assertAlmostEqual(history[0]["reward"], expected["critic/score/mean"], delta=1e-5)
        for name in ("actor/pg_loss", "actor/loss", "actor/entropy_loss", "actor/grad_norm",
                     "actor/pg_clipfrac", "actor/ppo_kl", "actor/lr"):
            self.assertAlmostEqual(history[0][name], expected[name], delta=1e-5 * max(1, abs(expected[name])), msg=name)
        self.assertGreater(history[-1]["reward"], 2 * history[0]["reward"])

    def test_length(self):
        """Goal: the example fits on a page: 60 lines of at most 79 columns."""
        text = pathlib.Path(grpo_digits.__file__).read_text(encoding="utf-8")
        self.assertLessEqual(len(text.splitlines()), 60)
        self.assertLessEqual(max(map(len, text.splitlines())), 79)


if __name__ == "__main__":
    unittest.main()
