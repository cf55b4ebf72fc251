"""The published rows: how conversations lie in them, and what commits to them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.digests import tree_root
from tallystick.core.errors import MalformedError, ProofError
from tallystick.formats.data.rows import (
    CommittedRows,
    Labelled,
    RowsRecipe,
    check_row,
    lay_row,
    leaves_bytes,
    order_of,
    parts_of,
    read_rows,
    row_leaf,
    starts_bytes,
    starts_of,
)

CASES = json.loads((Path(__file__).parents[3] / "vectors" / "rows" / "rows.json").read_text())["rows"]
PACKED = [case for case in CASES if "packing" in case["recipe"]]


def recipe_of(case: dict[str, Any]) -> RowsRecipe:
    return RowsRecipe.from_bytes(case["recipe"].encode(), "recipe")


def placed(case: dict[str, Any]) -> list[Labelled]:
    """The conversations in the order of places, cut to the length of a row."""
    length = recipe_of(case).length
    cut = [{name: np.array(part[:length], np.int64) for name, part in each.items()} for each in case["conversations"]]
    return [Labelled(**cut[number]) for number in case["order"]]


@pytest.mark.parametrize("case", CASES)
def test_published_rows_hold(case: dict[str, Any], tmp_path: Path) -> None:
    recipe, given = recipe_of(case), placed(case)
    assert recipe.identity == case["digest"]
    assert order_of(recipe).tolist() == case["order"]
    starts = starts_of((each.tokens.size for each in given), recipe)
    assert starts == [*case["starts"], recipe.total]
    rows = [lay_row(given[start:end], recipe) for start, end in pairwise(starts)]
    assert [{name: part.tolist() for name, part in row.items()} for row in rows] == case["rows"]
    assert all(tuple(row) == parts_of(recipe) for row in rows)
    leaves = tuple(row_leaf(row, recipe) for row in rows)
    assert [leaf.hex() for leaf in leaves] == case["leaves"]
    assert tree_root(leaves).hex() == recipe.root
    (tmp_path / "rows.json").write_bytes(case["recipe"].encode())
    (tmp_path / "rows.leaves").write_bytes(leaves_bytes(leaves))
    (tmp_path / "rows.starts").write_bytes(starts_bytes(starts[:-1]))
    found = read_rows(tmp_path)
    for row in range(recipe.count):
        check_row(found, row, given[found.places_of(row).start : found.places_of(row).stop + 1])


@pytest.mark.parametrize("case", PACKED)
def test_a_row_that_holds_fewer_conversations_than_fit_is_refused(case: dict[str, Any]) -> None:
    recipe, given = recipe_of(case), placed(case)
    honest = CommittedRows(recipe, tuple(bytes.fromhex(leaf) for leaf in case["leaves"]), np.array(case["starts"]))  # type: ignore[arg-type]
    row = max(range(recipe.count), key=lambda each: len(honest.places_of(each)))
    places = honest.places_of(row)
    check_row(honest, row, given[places.start : places.stop + 1])
    if len(places) > 1:
        starts = [each - (each == places.stop) for each in case["starts"]]
        forged = CommittedRows(recipe, honest.leaves, np.array(starts))
        with pytest.raises(ProofError, match=f"row {row} holds {len(places) - 1} conversations, and {len(places)} of"):
            check_row(forged, row, given[places.start : places.stop])


@pytest.mark.parametrize("case", PACKED[:1])
@pytest.mark.parametrize(
    "change",
    [{"packing": None}, {"conversations": None}, {"starts": None}, {"conversations": 1}, {"packing": "wrapped"}],
    ids=["no-packing", "no-conversations", "no-starts", "fewer-than-rows", "unknown"],
)
def test_a_recipe_states_all_of_its_packing(case: dict[str, Any], change: dict[str, Any]) -> None:
    stated = json.loads(case["recipe"])
    RowsRecipe.from_json(stated, "recipe")
    changed = {name: value for name, value in (stated | change).items() if value is not None}
    with pytest.raises(MalformedError, match="recipe"):
        RowsRecipe.from_json(changed, "recipe")


@pytest.mark.parametrize("starts", [[1, 2, 4], [0, 0, 4], [0, 4, 2], [0, 2, 10]])
def test_starts_that_leave_a_row_empty_are_refused(starts: list[int], tmp_path: Path) -> None:
    from tallystick.core.digests import digest

    content, recipe = starts_bytes(starts), recipe_of(PACKED[0])
    leaves = [bytes.fromhex(leaf) for leaf in PACKED[0]["leaves"][:3]]
    changed = {"count": 3, "starts": digest("blob", content), "root": tree_root(leaves).hex()}  # type: ignore[arg-type]
    (tmp_path / "rows.json").write_bytes(recipe.model_copy(update=changed).to_bytes())
    (tmp_path / "rows.leaves").write_bytes(b"".join(leaves))
    (tmp_path / "rows.starts").write_bytes(content)
    with pytest.raises(ProofError, match="a row holds no conversation, or more of them than tokens"):
        read_rows(tmp_path)
