"""Stands for the packages of experiment trackers: writes every call to the file TRACKER_LOG, a JSON line each. A call that
TRACKER_FAILS names raises."""
import json
import os


class Recorder:
    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Recorder(f"{self.name}.{name}")

    def __call__(self, *args, **kwargs):
        if os.environ.get("TRACKER_FAILS") == self.name:
            raise RuntimeError("the tracker's server refuses")
        with open(os.environ["TRACKER_LOG"], "a") as file:
            print(json.dumps([self.name, list(args), kwargs], default=lambda value: value.name), file=file)
        print("text that a package prints")
        return self
