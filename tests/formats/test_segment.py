"""The documents of a segment that is handed over alone, against their vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import MalformedError, ProofError
from tallystick.formats.claims import Log
from tallystick.formats.openings import OpenedRecord, SegmentStatement

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "segment" / "segments.json").read_text())
LOG = Log.from_json(VECTORS["log"], "log")


@pytest.mark.parametrize("vector", VECTORS["segments"], ids=lambda vector: vector["case"])
def test_a_segment_goes_forward(vector: dict[str, Any]) -> None:
    data = vector["bytes"].encode()
    if "refused" in vector:
        with pytest.raises(MalformedError):
            SegmentStatement.from_bytes(data, "segment.json")
        return
    assert SegmentStatement.from_bytes(data, "segment.json").to_bytes() == data


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda vector: vector["case"])
def test_a_record_stands_in_its_place(vector: dict[str, Any]) -> None:
    data, refused = vector["bytes"].encode(), vector.get("refused")
    if refused == "form":
        with pytest.raises(MalformedError):
            OpenedRecord.from_bytes(data, "line")
        return
    opened = OpenedRecord.from_bytes(data, "line")
    if refused == "proof":
        with pytest.raises(ProofError):
            opened.line(LOG)
        return
    assert opened.line(LOG) == opened.record.encode()
