"""The drawing of a cluster: what a list that was cut leaves out is no reason to fail."""

from __future__ import annotations

from typing import Any

from tallystick.web.pages.topology_drawing import topology


def device(name: str, kind: str = "gpu", host: str | None = None) -> dict[str, Any]:
    return {"name": name, "kind": kind, "host": host}


def test_links_are_drawn_and_those_to_devices_that_are_not_listed_left_out() -> None:
    devices = [device("node", "host"), device("node/gpu0", host="node"), device("alone", host="away")]
    links = [{"one": "node", "other": "node/gpu0"}, {"one": "node", "other": "away"}]
    drawn = str(topology({"devices": devices, "links": links}))
    assert drawn.count('class="link"') == 1
    assert drawn.count("<rect") == 3
