"""Reads an inference directory into the database: the claim over calls of a model, its records and its graph."""

from __future__ import annotations

from itertools import islice
from typing import Final

import sqlalchemy as sa

from tallystick.indexing.documents import keep_document
from tallystick.indexing.graphs import add_graph, use_graph
from tallystick.indexing.log_reading import LogLine, read_on
from tallystick.indexing.transcripts import begin_run, compared, keep_position, position_of_run
from tallystick.store.database.bulk import insert_many
from tallystick.store.database.schema import RECORD, RUN, SOURCE
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.inference import InferenceDirectory

BATCH: Final = 20_000


def add_calls(database: WorkloadDatabase, calls: InferenceDirectory, name: str | None = None) -> str:
    """Read recorded calls into the database, or what is new of them; returns the name of the run there.

    Raises:
        MalformedError: a record in the file is another one than in the database, or the graph is not the claimed one.
        UnavailableError: a file of it cannot be read.
        UsageError: the name belongs to another run.
    """
    place, claim = str(calls.path.absolute()), calls.claim()
    with database.writing(place) as connection:
        number, position = begin_run(connection, "inference", place, name)
        compared(connection, calls.transcript_path, number, position)
        if calls.graph_path.is_file():
            use_graph(
                connection, number, add_graph(connection, calls.graph_path, claim.graph), "model", "graphs/model.json"
            )
    batch: list[LogLine] | None = None
    end = calls.transcript_path.stat().st_size
    while batch or batch is None:
        with database.writing(place) as connection:
            position = position_of_run(connection, number)
            batch = list(islice(read_on(calls.transcript_path, position, end=end), BATCH))
            rows = ((number, each.behind.lines - 1, "call", bytes(each.leaf)) for each in batch)
            insert_many(connection, RECORD, ("run", "number", "kind", "leaf"), rows)
            if batch:
                keep_position(connection, number, batch[-1].behind)
    with database.writing(place) as connection:
        keep_document(connection, "claim", claim.identity, claim.to_bytes())
        keep_document(connection, "environment", claim.environment, calls.environment().to_bytes())
        stated = {
            "claim": claim.identity,
            "environment": claim.environment,
            "weights": claim.weights,
            "graph": claim.graph,
        }
        values = {"status": "claimed", "transcript": claim.transcript.root, **stated}
        connection.execute(sa.update(RUN).where(RUN.c.id == number).values(**values))
        return str(connection.execute(sa.select(SOURCE.c.name).join(RUN).where(RUN.c.id == number)).scalar_one())
