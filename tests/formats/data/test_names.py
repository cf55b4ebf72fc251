from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError
from tallystick.formats.data.records import NameOrder, check_name, shown


@pytest.mark.parametrize(
    "name", ["a", "a/b", "a/b/", ".git", "a..b", "...", "naïve café", "a b", "-", "xx:y", "a." * 128]
)
def test_portable_names_are_accepted(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "/a",
        "a//b",
        "a//",
        "./a",
        "a/.",
        "..",
        "a/../b",
        "a\\b",
        "a\0",
        "a\n",
        "\x7f",
        "C:/a",
        "\udce9",
        "x" * 257,
    ],
)
def test_names_that_mean_another_place_somewhere_are_refused(name: str) -> None:
    with pytest.raises(MalformedError, match="the name"):
        check_name(name)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "a"], "twice"),
        (["a/", "a/"], "twice"),
        (["b", "a"], "sorted"),
        (["a", "a/b"], "is a file and a directory"),
        (["a/", "a/b"], "is a empty directory and a directory"),
        (["a/b", "a/b/c"], "is a file and a directory"),
    ],
)
def test_names_that_are_no_tree_in_order_are_refused(names: list[str], message: str) -> None:
    order = NameOrder()
    for name in names[:-1]:
        order.add(name)
    with pytest.raises(MalformedError, match=message):
        order.add(names[-1])


@given(st.text(max_size=300))
@settings(deadline=None)
def test_any_text_is_accepted_or_refused_in_one_printable_line(name: str) -> None:
    assert shown(name).removesuffix("…").isascii()
    message = ""
    try:
        check_name(name)
    except MalformedError as error:
        message = str(error)
    assert "\n" not in message
