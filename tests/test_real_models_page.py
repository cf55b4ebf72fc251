"""The page about a pretrained model does what it says: `pytest -m 'slow and real_model'`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages.reading import read_page
from tests.support.pages.running import run_page

PAGE = Path(__file__).parents[1] / "docs" / "real_models.md"
LIMIT_S = 1800


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.timeout(LIMIT_S)
def test_the_page_does_what_it_says() -> None:
    run_page(read_page(PAGE.read_text()), LIMIT_S)


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.timeout(LIMIT_S)
def test_the_dispute_about_an_answer_runs_as_the_page_says() -> None:
    """The blocks up to the dispute, without vLLM and without fine-tuning: two minutes on two quiet cores."""
    page = PAGE.read_text()
    served, forged = page.index("## Serve with vLLM"), page.index("## A forged answer")
    run_page(read_page(page[:served] + page[forged : page.index("## A model that nobody measured")]), LIMIT_S)


def test_the_page_can_be_read_and_names_its_command() -> None:
    page = PAGE.read_text()
    assert {"sh", "python", "text"} <= {block.kind for block in read_page(page)}
    assert "tests.support.pages docs/real_models.md --limit" in " ".join(page.split())
