"""The page on decoding runs, and prints what it says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "decoding.md"

pytest.importorskip("torch")


def test_the_page_does_what_it_says(one_thread: None) -> None:
    tutorial = runpy.run_path(str(ROOT / "tests" / "test_tutorial.py"))
    names: dict[str, Any] = {"__name__": "decoding"}
    printed = ""
    for kind, text, line in tutorial["blocks"](PAGE.read_text()):
        if kind == "python":
            printed = tutorial["run_python"](text, line, names)
        else:
            assert tutorial["as_shown"](text, printed), f"line {line} shows something else than\n{printed}"
