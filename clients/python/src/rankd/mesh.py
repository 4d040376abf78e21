"""The mesh of a role: the coordinates of its ranks (docs/meshes.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from rankd.v1 import common_pb2 as pb

ORDER_TRAIN = "tp-cp-ep-dp-pp"
ORDER_ROLLOUT = "pp-tp-dp"
_AXES = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True)
class Mesh:
    """Sizes of the axes. 0 is the default: 1; for dp the remaining ranks; for etp tp. `order` names the axes,
    fastest first; `ranks` are the ranks of the world that the mesh spans, in mesh order, () for all."""

    tp: int = 0
    cp: int = 0
    ep: int = 0
    etp: int = 0
    dp: int = 0
    pp: int = 0
    order: str = ""
    ranks: Tuple[int, ...] = ()

    def message(self) -> "pb.Mesh":
        return pb.Mesh(tp=self.tp, cp=self.cp, ep=self.ep, etp=self.etp, dp=self.dp, pp=self.pp,
                       order=self.order, ranks=self.ranks)

    @classmethod
    def of(cls, message: "pb.Mesh") -> "Mesh":
        return cls(message.tp, message.cp, message.ep, message.etp, message.dp, message.pp, message.order,
                   tuple(message.ranks))


class Grid:
    """A mesh laid over the ranks of a world."""

    def __init__(self, mesh: Mesh, world_size: int) -> None:
        ranks: Sequence[int] = mesh.ranks or range(world_size)
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < world_size for rank in ranks):
            raise ValueError(f"ranks={list(ranks)}: expected each of 0 to {world_size - 1} at most once")
        size = {"tp": max(mesh.tp, 1), "cp": max(mesh.cp, 1), "pp": max(mesh.pp, 1)}
        dense = size["tp"] * size["cp"] * size["pp"]
        if len(ranks) % dense:
            raise ValueError(f"mesh of {len(ranks)} ranks is not divisible by tp={size['tp']} x cp={size['cp']} x "
                             f"pp={size['pp']}")
        size["dp"] = len(ranks) // dense
        if mesh.dp and mesh.dp != size["dp"]:
            raise ValueError(f"mesh of {len(ranks)} ranks with tp={size['tp']} cp={size['cp']} pp={size['pp']} has "
                             f"dp={size['dp']}, but dp={mesh.dp} was asked for")
        self.mesh = mesh
        self.size = size
        self.world_size = world_size
        self.ranks = list(ranks)
        named = [axis for axis in (mesh.order or ORDER_TRAIN).split("-") if axis in _AXES]
        self._order = named + [axis for axis in _AXES if axis not in named]
        self.coords: Dict[int, Dict[str, int]] = {rank: self._coords(i) for i, rank in enumerate(self.ranks)}

    def _coords(self, index: int) -> Dict[str, int]:
        coords = {}
        for axis in self._order:
            coords[axis] = index % self.size[axis]
            index //= self.size[axis]
        return coords

    def at(self, rank: int, name: str) -> Tuple[int, int]:
        """The coordinate `name` of a rank and its size: an axis, or "rank", the position in the list of ranks."""
        if name == "rank":
            return self.ranks.index(rank), len(self.ranks)
        return self.coords[rank][name], self.size[name]

    def is_collector(self, rank: int) -> bool:
        """The rank that returns the results of its replica: tp 0, cp 0 and the last pipeline stage, which in a mesh
        with pp fastest (a rollout's) is stage 0."""
        at = self.coords[rank]
        stage = 0 if self._order[0] == "pp" else self.size["pp"] - 1
        return at["tp"] == 0 and at["cp"] == 0 and at["pp"] == stage


def world_ranks(grids: Sequence[Grid]) -> List[int]:
    """Every rank of one of the meshes, once, ascending."""
    return sorted({rank for grid in grids for rank in grid.ranks})
