#!/usr/bin/env python3
"""Sends the metrics of a run to an experiment tracker: rankd_logger.py wandb|mlflow|swanlab|trackio

rankctl starts it for a logger of that name (docs/logging.md). Standard input, one JSON object a line:
    {"begin": {"project", "experiment", "run", "dir", "config"}}     answered by one line: {} or {"error": TEXT}
    {"step": 3, "metrics": {NAME: number or null}}
    {"step": 3, "tag": "val/generations", "samples": [{"input", "output", "gts", "score"}]}
    {"finish": "succeeded"}                                          or "failed", "interrupted"
Needs the tracker's package; settings are the tracker's environment variables, as in verl."""
import json
import os
import sys


class Wandb:
    def __init__(self, begin):
        import wandb

        self.wandb = wandb
        self.run = wandb.init(
            project=begin["project"],
            name=begin["experiment"],
            id=begin["run"],
            resume="allow",
            dir=begin["dir"],
            config=begin["config"],
            entity=os.environ.get("WANDB_ENTITY"),
        )

    def log(self, step, metrics):
        self.run.log(metrics, step=step)

    def samples(self, step, tag, rows):
        columns = ["step", "input", "output", "gts", "score"]
        data = [[step] + [row[name] for name in columns[1:]] for row in rows]
        self.run.log({tag: self.wandb.Table(columns=columns, data=data)}, step=step)

    def finish(self, outcome):
        self.run.finish(exit_code=0 if outcome == "succeeded" else 1)


class Mlflow:
    """Names have no "@" there: verl's "_at_" stands for it."""

    def __init__(self, begin):
        import mlflow

        self.mlflow = mlflow
        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri("sqlite:///" + os.path.join(begin["dir"], "mlflow.db"))
        mlflow.set_experiment(begin["project"])
        mlflow.start_run(run_name=begin["experiment"])
        mlflow.log_dict(begin["config"], "config.json")

    def log(self, step, metrics):
        self.mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in metrics.items()}, step=step)

    def samples(self, step, tag, rows):
        self.mlflow.log_dict({"rows": rows}, f"{tag}/{step}.json")

    def finish(self, outcome):
        self.mlflow.end_run("FINISHED" if outcome == "succeeded" else "FAILED")


class Swanlab:
    def __init__(self, begin):
        import swanlab

        self.swanlab = swanlab
        swanlab.init(
            project=begin["project"],
            experiment_name=begin["experiment"],
            config=begin["config"],
            logdir=os.environ.get("SWANLAB_LOG_DIR", os.path.join(begin["dir"], "swanlog")),
            mode=os.environ.get("SWANLAB_MODE", "cloud"),
        )

    def log(self, step, metrics):
        self.swanlab.log(metrics, step=step)

    def samples(self, step, tag, rows):
        texts = [self.swanlab.Text(f"{row['input']}\n\n{row['output']}", caption=str(row["score"])) for row in rows]
        self.swanlab.log({tag: texts}, step=step)

    def finish(self, outcome):
        self.swanlab.finish()


class Trackio:
    def __init__(self, begin):
        import trackio

        self.trackio = trackio
        trackio.init(project=begin["project"], name=begin["experiment"], config=begin["config"], resume="allow")

    def log(self, step, metrics):
        self.trackio.log(metrics, step=step)

    def samples(self, step, tag, rows):
        pass  # tables need pandas there

    def finish(self, outcome):
        self.trackio.finish()


TRACKERS = {"wandb": Wandb, "mlflow": Mlflow, "swanlab": Swanlab, "trackio": Trackio}


def main(name):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print
    tracker = None
    for line in sys.stdin:
        message = json.loads(line)
        if "begin" in message:
            try:
                tracker = TRACKERS[name](message["begin"])
                print("{}", file=answers, flush=True)
            except Exception as error:  # a missing package, no network, no key
                print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
                return 1
        elif "metrics" in message:
            tracker.log(message["step"], {k: v for k, v in message["metrics"].items() if v is not None})
        elif "samples" in message:
            tracker.samples(message["step"], message["tag"], message["samples"])
        elif "finish" in message:
            tracker.finish(message["finish"])
            return 0
    return 1  # rankctl is gone


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 and sys.argv[1] in TRACKERS else __doc__)
