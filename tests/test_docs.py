"""The pages of docs: the index names each, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def links(page: Path) -> set[str]:
    """The files that a page links to, or shows."""
    return {target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()) if "://" not in target}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file(page: Path) -> None:
    assert [target for target in sorted(links(page)) if not (page.parent / target).exists()] == []


def test_the_index_names_every_page() -> None:
    assert {path.name for path in DOCS.glob("*.md")} - links(DOCS / "README.md") == {"README.md"}


def test_the_map_names_modules_that_are_there() -> None:
    package = ROOT / "src" / "tallystick"
    doors = {path.name for path in package.iterdir() if path.is_dir()}
    names = re.findall(r"`([a-z_]+(?:\.\w+)+)`", (DOCS / "map.md").read_text())
    modules = [name.split(".") for name in names if name.partition(".")[0] in doors]
    modules = [parts[:-1] if parts[-1][0].isupper() else parts for parts in modules]
    assert len(modules) > 20
    places = [package.joinpath(*parts) for parts in modules]
    assert [str(place) for place in places if not (place.is_dir() or place.with_suffix(".py").is_file())] == []
