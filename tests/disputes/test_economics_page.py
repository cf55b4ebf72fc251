"""The page on economics, its figures and its picture are what the code gives."""

from __future__ import annotations

import json
import runpy
import struct
from pathlib import Path
from typing import Any

import pytest

from tallystick.disputes.economics.costs import Economy

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "research" / "economics_page.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_the_page_is_up_to_date(script: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "economics.md").read_text("utf-8") == script["page"](Economy()), (
        "research/economics_page.py"
    )


def test_the_figures_are_up_to_date(script: dict[str, Any]) -> None:
    written = json.loads((ROOT / "docs" / "data" / "economics.json").read_text("utf-8"))
    assert written == json.loads(json.dumps(script["data"](Economy())))
    assert written["met"] is True


def test_the_picture_is_one() -> None:
    head = (ROOT / "docs" / "economics_region.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert width > height > 400
