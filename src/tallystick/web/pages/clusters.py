"""Devices and how they are connected, by the cluster that states them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tallystick.api.database import Database
from tallystick.store.database.rows import DeviceRow
from tallystick.web.pages.asked import PageQuestion

DEVICES: Final = 2_000
LINKS: Final = 4_000


def devices_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """The devices of every cluster, or of one, with their links and the traces that ran on them."""
    cluster = asked.optional("cluster")
    devices, links = database.devices, database.links
    if cluster is not None:
        devices, links = devices.where(cluster=cluster), links.where(cluster=cluster)
    found: dict[str, list[DeviceRow]] = {}
    for device in devices.first(DEVICES):
        found.setdefault(device.cluster, []).append(device)
    connections = list(links.first(LINKS))
    return {
        "asked": cluster,
        "clusters": [
            {
                "digest": digest,
                "devices": [asdict(device) for device in members],
                "links": [asdict(link) for link in connections if link.cluster == digest],
                "traces": [trace.name for trace in database.traces.where(cluster=digest).first(LINKS)],
            }
            for digest, members in found.items()
        ],
    }
