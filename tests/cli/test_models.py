"""`tally model-root`: the root that receipts name, from files alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_root_is_that_of_the_loaded_model(
    tally: Callable[..., Any], model_directory: Path, language_model: Any
) -> None:
    assert tally("model-root", model_directory).out == language_model.card.identity + "\n"
    told = json.loads(tally("model-root", model_directory, "--recheck", "--json").out)
    assert told == {"card": language_model.card.to_json(), "root": language_model.card.identity}


def test_another_precision_is_another_root(
    tally: Callable[..., Any], model_directory: Path, language_model: Any
) -> None:
    told = tally("model-root", model_directory, "--dtype", "BF16").out
    assert told != tally("model-root", model_directory).out
    assert told.strip() == language_model.card_in("BF16").identity


def test_what_is_no_model_is_one_line(tally: Callable[..., Any], model_directory: Path, tmp_path: Path) -> None:
    told = tally("model-root", tmp_path)
    assert told.code == 4
    assert "and not a model directory" in told.complaint
    told = tally("model-root", model_directory, "--dtype", "I8")
    assert told.code == 2
    assert "--dtype" in told.complaint
