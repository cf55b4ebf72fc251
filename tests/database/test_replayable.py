"""What a service says of a run is read strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.core.errors import MalformedError
from tallystick.database.replayable import Discovery, ReplayKind, StepRange

FOUND = Discovery("digits", (0, 4, 8), (StepRange(1, 4, ReplayKind.EXACT), StepRange(5, 8, ReplayKind.MISSING, "all")))


def test_it_survives_the_way_through_json() -> None:
    assert Discovery.from_json(FOUND.to_json(), "the answer") == FOUND


@pytest.mark.parametrize(
    "change",
    [
        {"ranges": [{"first": 5, "last": 4, "replay": "exact"}]},
        {"ranges": [{"first": 5, "last": 8, "replay": "exact"}, {"first": 1, "last": 4, "replay": "exact"}]},
        {"ranges": [{"first": 1, "last": 4, "replay": "perhaps"}]},
        {"anchors": [8, 4]},
        {"anchors": "0"},
        {"run": None},
    ],
)
def test_another_form_is_refused(change: dict[str, Any]) -> None:
    told = json.loads(FOUND.to_json()) | change
    with pytest.raises(MalformedError, match="the answer: "):
        Discovery.from_json(json.dumps(told).encode(), "the answer")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(MalformedError):
        Discovery.from_json(b"[" * 10**6, "the answer")
