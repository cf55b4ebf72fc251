"""The page says what the entries say: made-up figures come out where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from research.inference.page import render
from research.inference.plots import HARD, TOKEN_WAYS, plot_curves, plot_tokens
from research.inference.tables import least_bytes, separation_table, tokens_table


def entry(way: str, setting: str, size: float, area: float) -> dict[str, Any]:
    found = {"value": area, "low": 0.9 * area, "high": 1.0, "honest": 8, "cheated": 8}
    return {"way": way, "setting": setting, "bytes": size, "area": found, "curve": [[0, 0], [0.1, area], [1, 1]]}


def decided(way: str, tokens: int, rejected: int) -> dict[str, Any]:
    outcome = {"answers": 8, "rejected": rejected, "accepted": 1, "interval": [0.0, 0.4]}
    return {"way": way, "setting": "seed known", "tokens": tokens, **outcome}


SEPARATION = [
    entry(way, setting, size, area)
    for way in HARD
    for setting, size, area in (("small", 0.5, 0.9991), ("large", 4.0, 1.0), ("TOPLOC", 8.06, 0.87))
]
TOKENS = [decided(way, tokens, tokens // 8) for way in TOKEN_WAYS for tokens in (8, 64)]


def test_areas_stand_under_their_settings() -> None:
    head, _, first, *_ = separation_table(SEPARATION)
    assert head == "| way of serving | small<br>0.50 B | large<br>4.00 B | TOPLOC<br>8.06 B |"
    assert first == "| int8 weights | 0.9991 | 1 | 0.8700 |"


def test_the_least_bytes_are_those_of_the_smallest_setting_that_is_good_enough() -> None:
    assert list(least_bytes(SEPARATION))[2] == "| int8 weights | 0.50 | small | 0.062 | 0.8700 |"
    assert len(list(least_bytes([entry("int8 weights", "TOPLOC", 8.06, 0.9)]))) == 2


def test_decisions_are_counted() -> None:
    assert list(tokens_table(TOKENS, "seed known"))[2] == "| honest | 1 ✗ 1 ✓ | 8 ✗ 1 ✓ |"


def test_parts_that_were_not_run_are_left_out() -> None:
    lines = list(render({"tokens F32": TOKENS}, "a command", "a machine"))
    assert "a command" in lines[0]
    assert any("The customer chose the seed" in line for line in lines)
    assert not any("ROC" in line for line in lines[1:])


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_separation_has_a_section_for_each_precision(dtype: str) -> None:
    text = "\n".join(render({f"separation {dtype}": SEPARATION}, "c", "m"))
    assert f"inference_curves_{dtype.lower()}.png" in text


def test_plots_are_drawn(tmp_path: Path) -> None:
    plot_curves(SEPARATION, ["small", "TOPLOC"], tmp_path / "curves.png")
    plot_tokens([*TOKENS, *({**each, "setting": "greedy"} for each in TOKENS)], tmp_path / "tokens.png")
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("curves.png", "tokens.png"))
