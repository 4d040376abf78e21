"""Client of rankd: commands a group of daemons for RL post-training. See docs/python.md."""

from rankd._call import CallFuture, Metrics, Result
from rankd._watch import Event
from rankd._worker import Tls
from rankd.algo import grpo_advantages, pad_prompts
from rankd.batch import Batch, Encoded, Json, Packed, concat
from rankd.client import Client, connect
from rankd.errors import RankdError
from rankd.mesh import ORDER_ROLLOUT, ORDER_TRAIN, Grid, Mesh
from rankd.plan import MiniBatch, Plan, layout, make_plan

__all__ = ["Batch", "CallFuture", "Client", "Encoded", "Event", "Grid", "Json", "Mesh", "Metrics", "MiniBatch",
           "ORDER_ROLLOUT", "ORDER_TRAIN", "Packed", "Plan", "RankdError", "Result", "Tls", "concat", "connect", "grpo_advantages", "layout",
           "make_plan", "pad_prompts"]
