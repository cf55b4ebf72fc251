"""What each page of the scene is asked for."""

from __future__ import annotations

from urllib.parse import urlencode

from tallystick.database.query import DatabaseQueries
from tests.support.workload_scene import REJECTED

RUN = {"name": "digits <1>"}


class Addresses:
    """The addresses of all pages over one scene."""

    def __init__(self, database: DatabaseQueries) -> None:
        self.root = str(database.graphs.first(1).one().root)
        self.asked: dict[str, dict[str, str]] = {
            **{name: {} for name in ("overview", "runs", "graphs", "timelines", "devices")},
            **{name: {} for name in ("audits", "receipts", "disputes")},
            "run": RUN,
            "step": {"run": RUN["name"], "step": "3"},
            "graph": {"root": self.root},
            "operator": {"graph": self.root, "number": "1"},
            "timeline": {"name": "timeline"},
            "audit": {"digest": REJECTED},
            "claim": {"digest": str(database.runs.one().claim)},
            "stream": {"name": "provider"},
            "dispute": {"name": "court/0", "move": "2"},
        }

    def of(self, name: str, form: str = "") -> str:
        """The address of a page, or of its twin."""
        return f"/{name}{form}?{urlencode(self.asked[name])}"
