"""The drawing of a dispute: one bar a move, on which what is still contested becomes shorter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from markupsafe import Markup

from tallystick.web.pages.asked import to

ROW: Final = 44
TEXT: Final = 14
BAR: Final = 9
LEAST: Final = 0.006


def narrowing(found: Mapping[str, Any]) -> Markup:
    """The moves of a dispute; those behind the one that is shown are pale, and each leads to the dispute after it."""
    moves = found["moves"]
    body = "".join(part for index, move in enumerate(moves) for part in _move(found, index, move))
    last = moves[-1] if moves else None
    text = "no move yet" if last is None else f"{last['low']} to {last['high']} of {last['size']} {last['level']} left"
    named = f"<title>What is contested after each move</title><desc>{escape(text)}</desc>"
    return Markup(f'<svg class="narrowing" role="group" height="{ROW * max(1, len(moves))}">{named}{body}</svg>')


def _move(found: Mapping[str, Any], index: int, move: Mapping[str, Any]) -> Iterator[str]:
    top, size = index * ROW, max(1, move["size"])
    start, width = move["low"] / size, max((move["high"] - move["low"]) / size, LEAST)
    left = f"{move['level']} {move['low']:,}" + ("" if move["high"] - move["low"] == 1 else f"–{move['high'] - 1:,}")
    state = "later" if index >= found["shown"] else "shown" if index == found["shown"] - 1 else "past"
    address = to("dispute", name=found["dispute"]["name"], move=index + 1)
    yield f'<a class="{state}" href="{escape(address)}" tabindex="-1">'
    who = f"{index + 1}. {move['role']} {move['summary']}"
    yield f'<text class="who" x="0" y="{top + TEXT}">{escape(who)}</text>'
    yield f'<text class="left" x="100%" y="{top + TEXT}" text-anchor="end">{escape(left)}</text>'
    yield f'<rect class="all" x="0" y="{top + TEXT + 7}" width="100%" height="{BAR}"/>'
    place = f'x="{100 * min(start, 1 - LEAST):.3f}%" width="{100 * width:.3f}%"'
    yield f'<rect class="{escape(move["role"])}" {place} y="{top + TEXT + 7}" height="{BAR}"/></a>'
