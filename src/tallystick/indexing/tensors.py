"""Reads the tensors of a run into the database: those of its anchors, and of the batches that loops keep as files.

Their digests are computed from the bytes, and the digest of the whole is compared with the one that the record states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from tallystick.commitments.digests import Digest
from tallystick.errors import MalformedError
from tallystick.graphs.files import load_graph
from tallystick.indexing.graphs import shape_text
from tallystick.store.database.bulk import insert_new
from tallystick.store.database.schema import ANCHOR, BINDING, GRAPH, RUN, SOURCE, STEP, TENSOR
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import StateDigests, TensorDigest, digest_file
from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.record import batch_file

NAMES_AT_ONCE: Final = 500


@dataclass(frozen=True)
class _Found:
    """A tensor in a file."""

    tree: TensorDigest
    file: str

    @property
    def digest(self) -> Digest:
        """The digest that names it."""
        return self.tree.digest


_Tensors: TypeAlias = Mapping[str, _Found]


def add_tensors(database: WorkloadDatabase, run: RunDirectory, name: str) -> int:
    """Read the tensors of every anchor and batch that is there and not read yet; returns how many files were read.

    Raises `MalformedError` where a file does not hold what its record states.
    """
    with database.writing(name) as connection:
        found = sa.select(RUN.c.id, RUN.c.graph).join(SOURCE).where(SOURCE.c.kind == "run", SOURCE.c.name == name)
        number, root = connection.execute(found).one()
        connection.execute(sa.update(RUN).where(RUN.c.id == number, RUN.c.tensors.is_(False)).values(tensors=True))
        bound = sa.select(BINDING.c.step, BINDING.c.moment).where(BINDING.c.run == number).distinct()
        done = {(step, moment) for step, moment in connection.execute(bound)}
        anchors = [(int(step), Digest(digest)) for step, digest in connection.execute(_anchors(number))]
        batches = [(int(step), Digest(digest)) for step, digest in connection.execute(_batches(number))]
    asked = _asked(run, root)
    read = 0
    held: dict[int, _Tensors] = {}
    for step, digest in anchors:
        if (step, "after") not in done:
            held[step] = _of_anchor(run, step, digest, held)
            _bind(database, name, number, step, "after", held[step], root, asked)
            read += 1
    for step, digest in batches:
        file = batch_file(digest)
        if (step, "during") not in done and (run.path / file).is_file():
            tensors = _of_file(run.path / file, file)
            _check(tensors, digest, file)
            _bind(database, name, number, step, "during", tensors, root, asked)
            read += 1
    return read


def _anchors(run: int) -> sa.Select[Any]:
    return (
        sa.select(ANCHOR.c.step, ANCHOR.c.digest).where(ANCHOR.c.run == run, ANCHOR.c.present).order_by(ANCHOR.c.step)
    )


def _batches(run: int) -> sa.Select[Any]:
    named = STEP.c.batch.startswith("sha256:")
    return sa.select(STEP.c.step, STEP.c.batch).where(STEP.c.run == run, named).order_by(STEP.c.step)


def _asked(run: RunDirectory, root: str | None) -> Mapping[str, str]:
    """The dtype that the step graph asks of each of its inputs."""
    if root is None or not run.graph_path.is_file():
        return {}
    return {each.name: each.spec.dtype for each in load_graph(run.graph_path).inputs}


def _of_anchor(run: RunDirectory, step: int, digest: Digest, held: dict[int, _Tensors]) -> _Tensors:
    path = run.anchors.holding(step)
    tensors = dict(_of_file(path, str(path.relative_to(run.path))))
    for name, holder in run.anchors.elsewhere(step).items():
        if holder not in held:
            there = run.anchors.holding(holder)
            held[holder] = _of_file(there, str(there.relative_to(run.path)))
        tensors[name] = held[holder][name]
    _check(tensors, digest, path.name)
    return tensors


def _of_file(path: Path, shown: str) -> _Tensors:
    return {name: _Found(tree, shown) for name, tree in digest_file(path).entries}


def _check(tensors: _Tensors, stated: Digest, file: str) -> None:
    found = StateDigests(tuple((name, tensors[name].tree) for name in sorted(tensors))).digest
    if found != stated:
        raise MalformedError(f"{file}: the state has digest {found}, and its record states {stated}")


def _bind(
    database: WorkloadDatabase,
    name: str,
    run: int,
    step: int,
    moment: str,
    tensors: _Tensors,
    root: str | None,
    asked: Mapping[str, str],
) -> None:
    with database.writing(name) as connection:
        numbers = _numbers(connection, tensors.values())
        graph = connection.execute(sa.select(GRAPH.c.id).where(GRAPH.c.root == root)).scalar()
        rows = [
            {
                "run": run,
                "step": step,
                "edge": edge,
                "moment": moment,
                "tensor": numbers[each.digest],
                "graph": graph if edge in asked else None,
                "intended": asked.get(edge, each.tree.dtype),
                "realised": each.tree.dtype,
                "file": each.file,
            }
            for edge, each in tensors.items()
        ]
        insert_new(connection, BINDING, rows)


def _numbers(connection: sa.Connection, tensors: Iterable[_Found]) -> dict[Digest, int]:
    """The row numbers of tensors by their digests; those that are new are inserted."""
    by_digest = {each.digest: each for each in tensors}
    found = _known(connection, list(by_digest))
    new = [_row(each) for digest, each in sorted(by_digest.items()) if digest not in found]
    if new:
        insert_new(connection, TENSOR, new)
        found |= _known(connection, [Digest(str(row["digest"])) for row in new])
    return found


def _known(connection: sa.Connection, digests: list[Digest]) -> dict[Digest, int]:
    found: dict[Digest, int] = {}
    for at in range(0, len(digests), NAMES_AT_ONCE):
        asked = sa.select(TENSOR.c.digest, TENSOR.c.id).where(TENSOR.c.digest.in_(digests[at : at + NAMES_AT_ONCE]))
        found |= {Digest(digest): number for digest, number in connection.execute(asked)}
    return found


def _row(tensor: _Found) -> dict[str, object]:
    spec = TensorSpec(tensor.tree.dtype, tensor.tree.shape)
    shape = {"dtype": spec.dtype, "shape": shape_text(spec.shape), "layout": "row-major", "bytes": spec.nbytes}
    return {"digest": tensor.digest, **shape}
