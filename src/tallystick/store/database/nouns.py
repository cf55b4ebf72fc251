"""The nouns of the database: the rows of each, the columns of its view that order them, and how nouns are related."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, get_args, get_type_hints

from tallystick.store.database.rows import (
    AnchorRow,
    AuditedSegmentRow,
    AuditRow,
    BindingRow,
    ChallengeRow,
    ClaimRow,
    DeviceRow,
    DisputeRow,
    EnvironmentRow,
    EventRow,
    FindingRow,
    GraphLinkRow,
    GraphRow,
    GraphUseRow,
    LinkRow,
    MoveRow,
    OperatorRow,
    ReceiptRow,
    RecordRow,
    ResponseRow,
    RunRow,
    StepRow,
    StoredFileRow,
    StreamRow,
    TensorRow,
    TraceRow,
)


@dataclass(frozen=True)
class Noun:
    """What can be asked for by `name`: its rows, and the columns of its view that order them and name one row.

    `orders` are further columns by which rows can be ordered, within what they belong to. None of these columns is ever
    empty.
    """

    name: str
    row: type[Any]
    key: tuple[str, ...]
    orders: tuple[str, ...] = ()

    @cached_property
    def types(self) -> Mapping[str, type]:
        """The type of each field, without `None`."""
        hints = get_type_hints(self.row)
        return {
            each.name: next((kind for kind in get_args(hints[each.name]) if kind is not type(None)), hints[each.name])
            for each in fields(self.row)
        }

    @cached_property
    def optional(self) -> frozenset[str]:
        """The fields that need not be stated."""
        hints = get_type_hints(self.row)
        return frozenset(each.name for each in fields(self.row) if type(None) in get_args(hints[each.name]))


NOUNS: Final = {
    noun.name: noun
    for noun in (
        Noun("runs", RunRow, ("run_id",), ("name",)),
        Noun("records", RecordRow, ("run_id", "number")),
        Noun("steps", StepRow, ("run_id", "step")),
        Noun("anchors", AnchorRow, ("run_id", "step")),
        Noun("stored_files", StoredFileRow, ("source_id", "file")),
        Noun("graphs", GraphRow, ("graph_id",)),
        Noun("graph_uses", GraphUseRow, ("run_id", "graph_id", "role")),
        Noun("graph_links", GraphLinkRow, ("graph_id", "relation", "other")),
        Noun("operators", OperatorRow, ("graph_id", "number")),
        Noun("tensors", TensorRow, ("tensor_id",)),
        Noun("bindings", BindingRow, ("run_id", "step", "edge", "moment")),
        Noun("environments", EnvironmentRow, ("digest",)),
        Noun("claims", ClaimRow, ("digest", "run_id")),
        Noun("devices", DeviceRow, ("device_id",)),
        Noun("links", LinkRow, ("link_id",)),
        Noun("traces", TraceRow, ("trace_id",)),
        Noun("events", EventRow, ("trace_id", "number"), ("start_ns",)),
        Noun("audits", AuditRow, ("audit_id",)),
        Noun("audited_segments", AuditedSegmentRow, ("audit_id", "first_step")),
        Noun("findings", FindingRow, ("audit_id", "number")),
        Noun("challenges", ChallengeRow, ("challenge_id",)),
        Noun("responses", ResponseRow, ("challenge_id", "digest")),
        Noun("streams", StreamRow, ("stream_id",)),
        Noun("receipts", ReceiptRow, ("stream_id", "number")),
        Noun("disputes", DisputeRow, ("dispute_id",)),
        Noun("moves", MoveRow, ("dispute_id", "number")),
    )
}

RELATIONS: Final = {
    ("runs", "records"): ("name", "run"),
    ("runs", "steps"): ("name", "run"),
    ("runs", "anchors"): ("name", "run"),
    ("runs", "bindings"): ("name", "run"),
    ("runs", "stored_files"): ("name", "run"),
    ("runs", "graph_uses"): ("name", "run"),
    ("runs", "traces"): ("name", "run"),
    ("runs", "audits"): ("name", "run"),
    ("runs", "audited_segments"): ("name", "run"),
    ("runs", "challenges"): ("name", "run"),
    ("runs", "claims"): ("name", "run"),
    ("runs", "environments"): ("environment", "digest"),
    ("runs", "disputes"): ("transcript", "root"),
    ("steps", "graphs"): ("graph", "root"),
    ("graph_uses", "graphs"): ("graph", "root"),
    ("graphs", "operators"): ("root", "graph"),
    ("graphs", "traces"): ("root", "graph"),
    ("graphs", "graph_links"): ("root", "graph"),
    ("graph_links", "graphs"): ("other", "root"),
    ("bindings", "tensors"): ("tensor", "digest"),
    ("bindings", "graphs"): ("graph", "root"),
    ("traces", "events"): ("name", "trace"),
    ("traces", "devices"): ("cluster", "cluster"),
    ("events", "devices"): ("device", "name"),
    ("audits", "findings"): ("digest", "audit"),
    ("audits", "audited_segments"): ("digest", "audit"),
    ("challenges", "responses"): ("digest", "challenge"),
    ("streams", "receipts"): ("name", "stream"),
    ("disputes", "moves"): ("name", "dispute"),
}
"""Which fields of two nouns hold the same; each can be followed in both directions."""
