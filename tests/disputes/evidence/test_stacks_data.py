"""What was measured between real stacks (`research/dispute_stacks.py`) is what the tolerances rest on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.disputes.evidence.locate import ALLOWED

DATA = Path(__file__).parents[3] / "docs" / "data" / "dispute_stacks.json"


@pytest.fixture(scope="module")
def found() -> Any:
    return json.loads(DATA.read_text())


def test_no_honest_claim_was_doubted_and_no_honest_prover_convicted(found: Any) -> None:
    for kind, counts in found["honest"].items():
        assert counts["n"] >= len(found["stacks"])
        assert counts.get("doubt", {"None": counts["n"]}) == {"None": counts["n"]}, kind
        assert not {"prover"} & {*counts.get("referee", {}), *counts.get("member", {})}, kind


def test_every_fraud_was_convicted_on_every_pair_of_stacks(found: Any) -> None:
    for counts in found["frauds"].values():
        assert counts["n"] == found["pairs"]
        assert counts["referee"] == counts["member"] == {"prover": counts["n"]}


def test_stacks_really_differ_and_stay_well_inside_the_tolerance(found: Any) -> None:
    assert found["replays_with_other_bits"] > 1
    assert 0 < found["largest_drift"]["worst"] < ALLOWED["F32"] / 4
