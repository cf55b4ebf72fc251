"""The log of the service: one line of JSON on stderr for each request, and for each thing that failed."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_LOCK = threading.Lock()


def write_line(event: Mapping[str, Any]) -> None:
    """Write one line; control characters of clients are escaped, as JSON escapes them."""
    line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **event})
    with _LOCK:
        print(line, file=sys.stderr, flush=True)
