"""The page on what disputes cost is what its data says, and what can be counted again is counted again."""

from __future__ import annotations

import copy
import importlib
import json
import runpy
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.disputes.game.state import Rules

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "research" / "dispute_costs.py"
WAYS = Rules(treasury="0" * 64).ways
Benchmark = Callable[[str], Any]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def held(script: dict[str, Any]) -> Any:
    return script["read_data"]()


@pytest.fixture
def benchmark_of(monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def test_the_page_is_up_to_date(script: dict[str, Any], held: Any) -> None:
    written = (ROOT / "docs" / "dispute_costs.md").read_text("utf-8")
    assert written == script["page"](held), "research/dispute_costs.py"


@pytest.mark.parametrize("name", ["rounds", "gas", "board", "work", "referee", "time", "idle"])
def test_the_page_follows_every_benchmark(script: dict[str, Any], held: Any, name: str) -> None:
    changed = copy.deepcopy(held)
    for figure in changed[f"dispute_{name}"]["figures"]:
        figure["value"] = [2 * part for part in figure["value"]]
    assert script["page"](changed) != script["page"](held)


@pytest.mark.parametrize("name", ["ways", "time"])
def test_the_plots_are_pictures(name: str) -> None:
    head = (ROOT / "docs" / f"dispute_costs_{name}.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert width > height > 400


def test_the_data_is_about_the_default_number_of_children(held: Any) -> None:
    about = {each["ways"] for each in held["dispute_work"]["figures"] if "ways" in each}
    assert about == {WAYS}


def test_every_goal_is_judged_by_its_interval(benchmark_of: Benchmark, held: Any) -> None:
    figure, measure = benchmark_of("figure"), benchmark_of("measure")
    judged = [each for name in held for each in held[name]["figures"] if each["goal"]]
    assert {each["outcome"] for each in judged} >= {"met", "missed"}
    for each in judged:
        goal = figure.Goal(float(each["goal"].removeprefix("≤ ")))
        assert each["outcome"] in ("void", goal.judge(measure.Interval(*each["value"]))), each["name"]


@pytest.mark.parametrize("size", [100, 1_000])
def test_rounds_and_bytes_are_those_of_the_game(benchmark_of: Benchmark, script: Any, held: Any, size: int) -> None:
    rounds = benchmark_of("dispute_rounds")
    written = script["find"](held, f"dispute_rounds: {size}/{WAYS}")
    again = rounds.of_cell(size, WAYS, rounds.PLACES).to_json()
    assert json.loads(json.dumps(again)) == written


def test_disputes_over_small_graphs_take_fewer_transactions_than_over_large_ones(script: Any, held: Any) -> None:
    small, large = (script["find"](held, f"dispute_gas: {size}/{WAYS}")["transactions"] for size in (100, 10_000))
    assert small[0] < large[0]
