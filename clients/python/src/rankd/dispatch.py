"""Assignment of a batch's chunks to ranks, and the ranks whose results are collected (docs/dispatch.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple

from rankd.batch import Batch
from rankd.mesh import Grid, world_ranks
from rankd.modes import ROWS

@dataclass(frozen=True)
class Mode:
    """A row of the table. payload: "value" (the same for every rank, or an item each), "items", "proto" (a batch
    that is split and joined), "metric". The others are names of coordinates (Grid.at)."""

    payload: str
    pads: bool
    receives: Tuple[str, ...]  # 0 in the ranks that get a chunk
    chunk: Tuple[str, ...]  # count the chunks, slowest first
    collects: Tuple[str, ...]  # 0 in the ranks whose results count


MODES: Dict[str, Mode] = {name: Mode(*row) for name, row in ROWS.items()}


def _is_at(grid: Grid, rank: int, zeros: Sequence[str]) -> bool:
    return all(grid.is_collector(rank) if name == "collector" else grid.at(rank, name)[0] == 0 for name in zeros)


def _chunk(grid: Grid, rank: int, digits: Sequence[str]) -> int:
    chunk = 0
    for name in digits:
        coordinate, size = grid.at(rank, name)
        chunk = chunk * size + coordinate
    return chunk


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
            chunks = {rank: _chunk(grids[0], rank, self.mode.chunk) for rank in grids[0].ranks
                      if _is_at(grids[0], rank, self.mode.receives)}
            self.collected = [rank for rank in chunks if _is_at(grids[0], rank, self.mode.collects)]
        self.chunk_of_rank = chunks
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
