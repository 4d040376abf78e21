#!/usr/bin/env python3
"""Makes tests/golden/tensorboard: an event file written by TensorBoard's own writer and protobuf messages, with the
events of tests/unit/rl/test_loggers.c. Needs tensorboard.

    python make_event_file.py DIRECTORY"""
import hashlib
import json
import pathlib
import sys

import google.protobuf
import tensorboard
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

WALL_TIME = 1769862896.5


def scalar(tag, value):
    return Summary.Value(tag=tag, simple_value=value)


def text(tag, value):
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(dtype=DT_STRING, tensor_shape=shape, string_val=[value.encode()])
    return Summary.Value(tag=tag, tensor=tensor, metadata=metadata)


def events():
    yield Event(wall_time=WALL_TIME, file_version="brain.Event:2")
    yield Event(wall_time=WALL_TIME, step=300, session_log=SessionLog(status=SessionLog.START))
    values = [scalar("training/global_step", 300), scalar("critic/score/mean", 0.1), scalar("actor/lr", 1e-6)]
    yield Event(wall_time=WALL_TIME, step=300, summary=Summary(value=values))
    yield Event(wall_time=WALL_TIME, summary=Summary(value=[scalar("val-core/gsm8k/reward/mean@1", -2.5)]))
    yield Event(wall_time=WALL_TIME, step=300,
                summary=Summary(value=[text("val/generations/text_summary", "# grüße\n\n" + "a long text " * 20)]))


def main(directory):
    path = pathlib.Path(directory) / "events.tfevents"
    with open(path, "wb") as file:
        writer = RecordWriter(file)
        for event in events():
            writer.write(event.SerializeToString(deterministic=True))
    manifest = {
        "script": "tests/golden/gen/make_event_file.py",
        "python": sys.version.split()[0],
        "tensorboard": tensorboard.__version__,
        "protobuf": google.protobuf.__version__,
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()},
    }
    (pathlib.Path(directory) / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
