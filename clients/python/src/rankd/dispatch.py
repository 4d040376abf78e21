"""Assignment of a batch's chunks to ranks, and the ranks whose results are collected (docs/dispatch.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

from rankd.batch import Batch
from rankd.mesh import Grid, world_ranks

_Rule = Callable[[Grid, int], int]
_Mask = Callable[[Grid, int], bool]


def _same(grid: Grid, rank: int) -> int:
    return 0


def _first_only(grid: Grid, rank: int) -> int:
    return 0 if rank == grid.ranks[0] else -1


def _rank(grid: Grid, rank: int) -> int:
    return grid.ranks.index(rank)


def _dp(grid: Grid, rank: int) -> int:
    return grid.coords[rank]["dp"]


def _item(grid: Grid, rank: int) -> int:
    at = grid.coords[rank]
    return (at["cp"] * grid.size["dp"] + at["dp"]) * grid.size["pp"] + at["pp"]


def _all(grid: Grid, rank: int) -> bool:
    return True


def _first(grid: Grid, rank: int) -> bool:
    return rank == grid.ranks[0]


def _collector(grid: Grid, rank: int) -> bool:
    return grid.is_collector(rank)


def _tp0(grid: Grid, rank: int) -> bool:
    return grid.coords[rank]["tp"] == 0


def _stages(grid: Grid, rank: int) -> bool:
    at = grid.coords[rank]
    return at["tp"] == 0 and at["cp"] == 0 and at["dp"] == 0


@dataclass(frozen=True)
class Mode:
    """A row of the table. payload: "value" (the same for every rank, or an item each), "items", "proto" (a batch
    that is split and joined)."""

    payload: str
    pads: bool
    chunk: _Rule
    collects: _Mask


MODES: Dict[str, Mode] = {
    "RANK_ZERO": Mode("value", False, _first_only, _first),
    "ONE_TO_ALL": Mode("value", False, _same, _all),
    "ALL_TO_ALL": Mode("value", False, _rank, _all),
    "MEGATRON_COMPUTE": Mode("items", False, _dp, _collector),
    "MEGATRON_COMPUTE_PROTO": Mode("proto", False, _dp, _collector),
    "MEGATRON_PP_AS_DP": Mode("items", False, _item, _tp0),
    "MEGATRON_PP_AS_DP_PROTO": Mode("proto", False, _item, _tp0),
    "MEGATRON_PP_ONLY": Mode("value", False, _same, _stages),
    "DP_COMPUTE": Mode("items", False, _rank, _all),
    "DP_COMPUTE_PROTO": Mode("proto", True, _rank, _all),
    "DP_COMPUTE_METRIC": Mode("metric", True, _rank, _all),
    "ND_COMPUTE": Mode("proto", False, _dp, _collector),
}


class Dispatch:
    """A mode over a mesh: chunk_of_rank[rank] of the addressed ranks, and the ranks whose results are collected,
    in the order of their chunks."""

    def __init__(self, name: str, grids: Sequence[Grid]) -> None:
        if name not in MODES:
            raise ValueError(f"unknown dispatch mode {name!r}, expected one of {', '.join(MODES)}")
        if len(grids) > 1 and name != "ONE_TO_ALL":
            raise ValueError(f"{name} over {len(grids)} meshes, expected ONE_TO_ALL or one mesh")
        self.name = name
        self.mode = MODES[name]
        if len(grids) > 1:
            chunks = {rank: 0 for rank in world_ranks(grids)}
            self.collected = list(chunks)
        else:
            chunks = {rank: self.mode.chunk(grids[0], rank) for rank in grids[0].ranks}
            self.collected = [rank for rank in chunks if self.mode.collects(grids[0], rank)]
        self.chunk_of_rank = {rank: chunk for rank, chunk in chunks.items() if chunk >= 0}
        self.num_chunks = max(self.chunk_of_rank.values()) + 1
        self.collected.sort(key=lambda rank: (self.chunk_of_rank[rank], rank))

    def split(self, batch: Batch) -> Tuple[List[Batch], int]:
        """The chunks, and how many rows were added as padding."""
        if self.mode.payload == "items":
            raise ValueError(f"{self.name} takes a list of {self.num_chunks} items, got one batch")
        if self.mode.payload == "value":
            return [batch] * self.num_chunks, 0
        padded, n = 0, batch.num_rows
        if self.mode.pads and n % self.num_chunks:
            padded = self.num_chunks - n % self.num_chunks
            batch = batch.rows(list(range(n)) + [n - 1] * padded)
        try:
            return batch.chunk(self.num_chunks), padded
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


def parse(dispatch: str, role: str) -> Tuple[str, List[str]]:
    """Mode and roles of the meshes of "ND_COMPUTE(rollout)"; without parentheses the mesh of the called role."""
    name, _, meshes = dispatch.partition("(")
    return name, meshes.rstrip(")").split("+") if meshes else [role]


def create(dispatch: str, role: str, grids: Mapping[str, Grid]) -> Dispatch:
    """The dispatch of a method that is called on `role`."""
    name, roles = parse(dispatch, role)
    for needed in roles:
        if needed not in grids:
            raise ValueError(f"role {needed!r} has no mesh in this group, expected one of {', '.join(grids)}")
    return Dispatch(name, [grids[needed] for needed in roles])
