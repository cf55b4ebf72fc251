"""Rules of optimizers say what vectors made from the page of the format say, and keep the bytes they had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError
from tallystick.core.tensors import TensorSpec
from tallystick.formats.optimizers import RULES as KINDS, read_rule, schedule_scalars

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "optimizer" / "rules.json").read_text())
RULES = [pytest.param(each, id=each["name"]) for each in VECTORS["rules"]]


@pytest.mark.parametrize("case", RULES)
def test_a_rule_is_read_and_keeps_its_bytes(case: dict[str, Any]) -> None:
    assert read_rule(case["rule"]).to_bytes() == encode(case["rule"])


@pytest.mark.parametrize("case", RULES)
def test_a_rule_names_its_slots(case: dict[str, Any]) -> None:
    dtype, shape = VECTORS["weight"]
    found = read_rule(case["rule"]).slots(TensorSpec(dtype, tuple(shape)))
    stated = {name: [slot.spec.dtype, list(slot.spec.shape), slot.start] for name, slot in found.items()}
    assert stated == case["slots"]
    assert {name: str(each[2]) for name, each in stated.items()} == {
        name: str(each[2]) for name, each in case["slots"].items()
    }


@pytest.mark.parametrize("case", RULES)
def test_a_rule_gives_the_scalars_of_a_step(case: dict[str, Any]) -> None:
    for step, wanted in case["scalars"].items():
        found = schedule_scalars(read_rule(case["rule"]), VECTORS["learning_rate"], int(step))
        assert found == pytest.approx(wanted, rel=1e-15, abs=0.0)
        assert list(found) == sorted(wanted)


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: case["name"])
def test_another_rule_is_malformed(case: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        read_rule(case["rule"])


def test_every_kind_has_a_vector() -> None:
    assert {case["rule"]["kind"] for case in VECTORS["rules"]} == set(KINDS)
