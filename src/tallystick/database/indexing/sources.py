"""The places that rows come from: documents by digest, and logs that are read on from where the last reading ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tallystick.core.digests import HASH_BYTES, Digest, Frontier, Hash, leaf_hash
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.database.bulk import insert_new, inserted
from tallystick.database.schema import DOCUMENT, GRAPH, GRAPH_USE, RUN, SOURCE
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.store.log import LINE_BYTES_MAX

# Documents by their digest.


def keep_document(connection: sa.Connection, noun: str, digest: Digest, body: bytes) -> None:
    """Keep the canonical bytes of a document, if they are not there already."""
    insert_new(connection, DOCUMENT, [{"digest": digest, "noun": noun, "body": body.decode()}])


# Reads on in an append-only log, from where the last reading ended.
#
# The root over what was read before is kept as a frontier. So the second reading finds a line that was changed since.


@dataclass(frozen=True)
class LogPosition:
    """How far a log was read: whole lines, their bytes, and the tree over them."""

    bytes_read: int = 0
    frontier: Frontier = field(default_factory=Frontier.empty)

    @classmethod
    def of(cls, bytes_read: int, lines: int, peaks: bytes) -> LogPosition:
        """The position that a row of the database holds."""
        hashes = tuple(Hash(peaks[at : at + HASH_BYTES]) for at in range(0, len(peaks), HASH_BYTES))
        return cls(bytes_read, Frontier(lines, hashes))

    @property
    def lines(self) -> int:
        """The number of lines read."""
        return self.frontier.size

    @property
    def peaks(self) -> bytes:
        """The roots of the complete subtrees, one after the other."""
        return b"".join(self.frontier.peaks)

    def behind(self, line: bytes, leaf: Hash) -> LogPosition:
        """The position behind one more line, given without its line feed."""
        return LogPosition(self.bytes_read + len(line) + 1, self.frontier.append(leaf))


@dataclass(frozen=True)
class LogLine:
    """A line, its leaf hash, and the position behind it."""

    line: bytes
    leaf: Hash
    behind: LogPosition


def whole_lines(path: Path, start: int = 0, bytes_max: int = LINE_BYTES_MAX, end: int | None = None) -> Iterator[bytes]:
    """The lines that begin from byte `start` on, before `end` if it is given, without their line feeds.

    One that is still being written is left out. Raises `MalformedError` at a line that is longer than `bytes_max`.
    """
    line = b""
    with path.open("rb") as file:
        file.seek(start)
        while (end is None or start < end) and (line := file.readline(bytes_max + 1)).endswith(b"\n"):
            start += len(line)
            yield line[:-1]
        if len(line) > bytes_max and not line.endswith(b"\n"):
            raise MalformedError(f"{path.name}: the line at byte {file.tell() - len(line)} is longer than {bytes_max}")


def read_on(
    path: Path, position: LogPosition, bytes_max: int = LINE_BYTES_MAX, end: int | None = None
) -> Iterator[LogLine]:
    """The whole lines behind `position` that begin before byte `end`; raises what `whole_lines` raises.

    Whoever reads in batches names the size that the log had at first: it may grow faster than it is read.
    """
    for line in whole_lines(path, position.bytes_read, bytes_max, end):
        leaf = leaf_hash(line)
        position = position.behind(line, leaf)
        yield LogLine(line, leaf, position)


def position_of(path: Path, lines: int) -> LogPosition:
    """The position behind the first `lines` lines as they stand now, or behind the last one if they are fewer."""
    position = LogPosition()
    for _, line in zip(range(lines), read_on(path, position), strict=False):
        position = line.behind
    return position


def read_in_batches(
    database: WorkloadDatabase,
    place: str,
    path: Path,
    count: int,
    reached: Callable[[sa.Connection], LogPosition],
    write: Callable[[sa.Connection, list[LogLine]], None],
    bytes_max: int = LINE_BYTES_MAX,
) -> None:
    """Read the lines behind those in the database, `count` of them in each transaction.

    `reached` says in each transaction how far the log was read, because others may be reading it too; `write` keeps
    the lines and their position. So a reading that was interrupted goes on where it stopped.
    """
    # It may grow faster than it is read: what it holds now is read.
    end = path.stat().st_size if path.is_file() else 0
    has_more = end > 0
    while has_more:
        with database.writing(place) as connection:
            batch = list(islice(read_on(path, reached(connection), bytes_max, end), count))
            if has_more := bool(batch):
                write(connection, batch)


# The places that rows come from: each has a kind, a name and a path or URL, from which the rows can be read again.

IN_DATABASE: Final = "database:"
"""What the place of a report begins with that no file holds: the row itself is what is kept."""

NAME_MAX: Final = 256
"""The most characters in the name of a place: it is a line on every page."""


@dataclass(frozen=True)
class SourcePlace:
    """A place that rows came from; `tensors` says whether the bytes of its states were asked to be read."""

    kind: str
    name: str
    place: str
    tensors: bool

    @property
    def key(self) -> tuple[str, str]:
        """What names its row."""
        return self.kind, self.name

    @property
    def is_in_database(self) -> bool:
        """Whether no file holds it: the database keeps it whole."""
        return self.place.startswith(IN_DATABASE)

    @property
    def is_there(self) -> bool:
        """Whether something stands there still; what is reached by a URL is taken to be there."""
        return self.is_in_database or "://" in self.place or Path(self.place).exists()


def places_of(connection: sa.Connection) -> tuple[SourcePlace, ...]:
    """All places, in the order in which they were added."""
    columns = (SOURCE.c.kind, SOURCE.c.name, SOURCE.c.place, sa.func.coalesce(RUN.c.tensors, sa.false()))
    rows = connection.execute(sa.select(*columns).outerjoin(RUN, RUN.c.source == SOURCE.c.id).order_by(SOURCE.c.id))
    return tuple(SourcePlace(kind, name, place, bool(tensors)) for kind, name, place, tensors in rows)


def source_of(connection: sa.Connection, kind: str, place: str, name: str | None) -> int:
    """The number of the source at `place`, which is added if it is new; its name is by default that of the folder.

    Raises `UsageError` where the name belongs to another place, or the place has another name already, and for a name
    that cannot be printed on a line.
    """
    known = connection.execute(sa.select(SOURCE).where(SOURCE.c.kind == kind, SOURCE.c.place == place)).one_or_none()
    if known is not None:
        if name is not None and name != known.name:
            raise UsageError(f"{place}: is in the database already, as {known.name}")
        return int(known.id)
    name = name or Path(place.rstrip("/")).name
    if not name.isprintable() or len(name) > NAME_MAX:
        raise UsageError(f"{name[:40]!a}: a name has at most {NAME_MAX} characters, and no control characters; --name")
    taken = connection.execute(sa.select(SOURCE.c.place).where(named(kind, name))).scalar()
    if taken is not None:
        raise UsageError(f"{name}: names {taken} in the database; give {place} another name with --name")
    return inserted(connection, SOURCE, kind=kind, name=name, place=place)


def forget_source(connection: sa.Connection, name: str) -> None:
    """Delete a source with all rows that came from it; raises `UnavailableError` where there is none of that name.

    A graph that another run names too is known by the file of that one from then on.
    """
    places = connection.execute(sa.select(SOURCE.c.place).where(SOURCE.c.name == name)).scalars().all()
    if not places:
        raise UnavailableError(f"{name}: nothing in the database has that name")
    connection.execute(sa.delete(SOURCE).where(SOURCE.c.name == name))
    for place in places:
        _move_graphs(connection, place)


def _move_graphs(connection: sa.Connection, place: str) -> None:
    """Name another file of each graph whose file lies at a place that is no source any more."""
    use = sa.select(GRAPH_USE.c.graph, SOURCE.c.place, GRAPH_USE.c.file).join(RUN, RUN.c.id == GRAPH_USE.c.run)
    others = connection.execute(use.join(SOURCE, SOURCE.c.id == RUN.c.source)).all()
    files = {graph: str(Path(run, file)) for graph, run, file in others}
    here = sa.select(GRAPH.c.id).where(GRAPH.c.place.startswith(f"{place}/", autoescape=True))
    for graph in connection.execute(here).scalars().all():
        connection.execute(sa.update(GRAPH).where(GRAPH.c.id == graph).values(place=files.get(graph)))


def named(kind: str, name: str) -> sa.ColumnElement[bool]:
    """Whether a source is the one of that kind and name."""
    return sa.and_(SOURCE.c.kind == kind, SOURCE.c.name == name)


def of_run(name: str, *columns: sa.Column[Any]) -> sa.Select[Any]:
    """Columns of the run of that name in the database, or of a table whose rows belong to it."""
    table: sa.FromClause = columns[0].table
    if table is not SOURCE:
        table = (table if table is RUN else table.join(RUN)).join(SOURCE)
    return sa.select(*columns).select_from(table).where(named("run", name))


def place_of(connection: sa.Connection, kind: str, name: str) -> str:
    """Where the source of that kind and name lies; raises `UnavailableError` where there is none."""
    place = connection.execute(sa.select(SOURCE.c.place).where(named(kind, name))).scalar()
    if place is None:
        raise UnavailableError(f"{name}: no {kind} of that name is in the database")
    return str(place)
