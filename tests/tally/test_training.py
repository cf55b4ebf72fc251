"""`tallystick.train`: from a recipe to a run that is audited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick

pytest.importorskip("torch")


@pytest.fixture
def recipe(recipe_of: Callable[..., Any], fast: Any) -> tallystick.Recipe:
    return recipe_of(fast, {"training": {"steps": 3}})


def test_a_recipe_becomes_a_run_that_is_accepted(
    one_thread: None, recipe: tallystick.Recipe, source: Path, tmp_path: Path
) -> None:
    seen: list[int] = []
    run = tallystick.train(
        recipe, tmp_path / "run", source=source, graph=False, progress=lambda index, *_: seen.append(index)
    )
    assert seen == [1, 2, 3]
    assert tallystick.audit(run, tallystick.Policy(full=True)).outcome == "accepted"


def test_a_finished_run_is_not_resumed_and_a_full_directory_is_left_alone(
    one_thread: None, recipe: tallystick.Recipe, source: Path, honest: Path, tmp_path: Path
) -> None:
    with pytest.raises(tallystick.UsageError, match="finished"):
        tallystick.train(resume=honest)
    (tmp_path / "note").write_text("mine")
    with pytest.raises(tallystick.UsageError):
        tallystick.train(recipe, tmp_path, source=source)


@pytest.mark.parametrize(
    "asked", [{}, {"out": "run"}, {"recipe": "a.toml"}, {"recipe": "a", "out": "b", "resume": "c"}]
)
def test_arguments_that_do_not_belong_together_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(tallystick.UsageError, match="or `resume`"):
        tallystick.train(**asked)


def test_a_file_that_is_no_recipe_is_malformed_and_one_that_is_missing_unavailable(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[model]\nnothing = 1\n")
    with pytest.raises(tallystick.MalformedError):
        tallystick.train(tmp_path / "a.toml", tmp_path / "run")
    with pytest.raises(tallystick.UnavailableError):
        tallystick.train(tmp_path / "b.toml", tmp_path / "run")
