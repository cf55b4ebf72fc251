"""Every page of docs/journeys does what it says: each block is run as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages.reading import read_page
from tests.support.pages.running import PAGE_TIMEOUT_S, run_page

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "journeys"
INDEX = FOLDER / "README.md"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path != INDEX)

pytest.importorskip("torch")


@pytest.mark.timeout(PAGE_TIMEOUT_S)
@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_a_journey_does_what_it_says(page: Path) -> None:
    blocks = read_page(page.read_text())
    assert "sh" in {block.kind for block in blocks}
    run_page(blocks)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_the_index_names_every_journey(page: Path) -> None:
    assert f"]({page.name})" in INDEX.read_text()


def test_there_are_as_many_as_the_index_says() -> None:
    assert INDEX.read_text().startswith("# Six journeys\n")
    assert len(PAGES) == 6
