"""The drawing of a cluster: what a list leaves out or says twice is no failure, and no text commands a screen."""

from __future__ import annotations

from typing import Any

from tallystick.database.pages.drawings import connections
from tallystick.database.pages.rendering import html_of


def device(name: str, kind: str = "gpu", host: str | None = None) -> dict[str, Any]:
    return {"name": name, "kind": kind, "host": host}


def test_links_are_drawn_and_those_to_devices_that_are_not_listed_left_out() -> None:
    devices = [device("node", "host"), device("node/gpu0", host="node"), device("alone", host="away")]
    links = [{"one": "node", "other": "node/gpu0"}, {"one": "node", "other": "away"}]
    drawn = str(connections({"devices": devices, "links": links}))
    assert drawn.count('class="link"') == 1
    assert drawn.count("<rect") == 3


def test_devices_that_sit_in_themselves_or_in_circles_are_drawn() -> None:
    devices = [device("a", host="b"), device("b", host="a"), device("node", "host", "node"), device("s", "switch", "a")]
    links = [{"one": "a", "other": "a"}, {"one": "node", "other": "s"}]
    drawn = str(connections({"devices": devices, "links": links}))
    assert (drawn.count('class="link"'), drawn.count('class="inside"'), drawn.count("<rect")) == (1, 2, 4)


def test_a_name_in_a_drawing_cannot_command_a_screen() -> None:
    drawn = connections({"devices": [device("<b>\x1b[31m\u202e")], "links": []})
    page = html_of("problem.html", {"page": "problem", "title": "x", "detail": drawn})
    assert "&lt;b&gt;\ufffd[31m\ufffd</text>" in page
