"""Tolerances by name: ours are loaded when they are asked for, and those of others count only where they work."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.verdicts.buckets import DualBucket
from tallystick.verdicts.registry import HOMES, NamedTolerance, tolerance_names
from tallystick.verdicts.tolerance import Finding, ReplayedState
from tests.support.plugins import install_tolerances

STATE = {"w": np.linspace(-1, 1, 8, dtype=np.float32)}
MOVED = {"w": STATE["w"] + np.float32(0.5)}
REPLAYED = ReplayedState({"w": np.zeros(8, np.float32)}, STATE)
Install = Callable[[str], None]

MODULE = """
from tallystick.verdicts.tolerance import Finding

class Wide:
    def summarize(self, state):
        return state["w"].array().tobytes() if hasattr(state["w"], "array") else state["w"].tobytes()

    def compare(self, claimed, replayed):
        import numpy as np
        distance = float(np.abs(np.frombuffer(claimed, "<f4") - np.asarray(replayed.end["w"])).max())
        return Finding(distance, 1.0, "whatever", "w")

def answering(found):
    class Answering(Wide):
        def compare(self, claimed, replayed):
            return found
    return Answering
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution in a folder that offers `outside`, a class that the text defines."""

    def put(text: str, **names: str) -> None:
        install_tolerances(tmp_path, MODULE + text, names or {"outside": "Outside"})
        monkeypatch.syspath_prepend(str(tmp_path))

    return put


@pytest.mark.parametrize("name", sorted(HOMES))
def test_our_own_say_whether_two_states_agree(name: str) -> None:
    tolerance = NamedTolerance.load(name)
    assert tolerance.compare(STATE, REPLAYED).agrees
    found = tolerance.compare(MOVED, REPLAYED)
    assert (found.agrees, found.name) == (False, name)


def test_both_buckets_are_reached_by_name() -> None:
    assert isinstance(NamedTolerance.load("dual").tolerance, DualBucket)


def test_only_what_is_asked_for_is_loaded() -> None:
    code = (
        "import sys; from tallystick.verdicts.registry import NamedTolerance, tolerance_names; tolerance_names();"
        "NamedTolerance.load('exact'); print([each for each in ('buckets', 'distances', 'reach')"
        " if f'tallystick.verdicts.{each}' in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_unknown_name_is_a_usage_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no such tolerance nowhere: there are bucket, dual, exact"):
        NamedTolerance.load("nowhere")


def test_a_tolerance_from_outside_is_known_and_judges(install: Install) -> None:
    install("class Outside(Wide): pass")
    assert tolerance_names() == ("bucket", "dual", "exact", "outside")
    tolerance = NamedTolerance.load("outside")
    assert tolerance.compare(MOVED, REPLAYED) == Finding(0.5, 1.0, "outside", "w")
    assert not tolerance.compare({"w": STATE["w"] + np.float32(2)}, REPLAYED).agrees


def test_ours_cannot_be_replaced_and_a_name_is_offered_once(install: Install) -> None:
    install("class Outside(Wide): pass\nclass Other(Wide): pass", exact="Outside", outside="Outside")
    assert not NamedTolerance.load("exact").compare(MOVED, REPLAYED).agrees


def test_a_name_that_two_offer_is_ambiguous(install: Install, tmp_path: Path) -> None:
    install("class Outside(Wide): pass")
    install_tolerances(tmp_path, MODULE + "class Outside(Wide): pass", {"outside": "Outside"}, "another_package")
    with pytest.raises(UsageError, match="tolerance outside: offered more than once"):
        NamedTolerance.load("outside")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        ("Outside = 5", "TypeError"),
        ("def Outside(): raise ValueError('made')", "ValueError: made"),
        ("", "AttributeError"),
    ],
    ids=["import", "no class", "making", "missing"],
)
def test_what_cannot_be_loaded_is_unavailable(install: Install, text: str, reason: str) -> None:
    install(text)
    with pytest.raises(UnavailableError, match=f"tolerance outside: {reason}"):
        NamedTolerance.load("outside")


@pytest.mark.parametrize(
    "found",
    [
        *("None", "True", "0.0", "Finding(0, float('nan'))", "Finding(float('nan'), 1.0)", "Finding(-1.0, 0.0)"),
        *("Finding(0.0, float('inf'))", "Finding('0', 1.0)", "Finding(0.0, None)", "Finding(False, True)"),
        "Finding(0.0, 1.0, advisory=True)",
    ],
)
def test_nonsense_is_no_agreement(install: Install, found: str) -> None:
    install(f"Outside = answering({found})")
    with pytest.raises(UnavailableError, match="gave no finding"):
        NamedTolerance.load("outside").compare(STATE, REPLAYED)


@pytest.mark.parametrize("method", ["summarize(self, state)", "compare(self, claimed, replayed)"])
def test_what_it_raises_is_no_agreement(install: Install, method: str) -> None:
    install(f"class Outside(Wide):\n    def {method}:\n        raise KeyError('gone')")
    with pytest.raises(UnavailableError, match="tolerance outside: KeyError: 'gone'"):
        NamedTolerance.load("outside").compare(STATE, REPLAYED)


def test_an_infinite_distance_is_a_disagreement(install: Install) -> None:
    install("Outside = answering(Finding(float('inf'), 1.0))")
    found: Any = NamedTolerance.load("outside").compare(STATE, REPLAYED)
    assert (found.agrees, found.distance) == (False, math.inf)
