"""Writes runs as event files, which TensorBoard shows beside others in the same folder."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

from tallystick.api.database import Database
from tallystick.exports.curves import PREFIX, points_of, summary_of

NO_FOLDER: Final = re.compile(r"[^\w.-]|^\.+")
"""What the name of a run may have that the name of a folder in another one may not."""


def write_tensorboard(database: Database, name: str, folder: Path) -> Path:
    """Write the curves of a run as scalars, its claim and verdicts as texts; returns the folder of the run.

    Raises `UnavailableError` where there is no such run, or `tensorboard` is not installed.
    """
    from tallystick.extras import require

    require("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    summary, place, now = summary_of(database, name), folder / NO_FOLDER.sub("_", name), time.time()
    writer = EventFileWriter(str(place))
    try:
        for point in points_of(database, name):
            scalar = scalar_pb(f"{PREFIX}{point.curve}", point.value)
            writer.add_event(Event(step=point.step, wall_time=now, summary=scalar))
        for topic, words in summary.words().items():
            text = text_pb(f"{PREFIX}{topic}", words)
            writer.add_event(Event(step=summary.run.steps, wall_time=now, summary=text))
    finally:
        writer.close()
    return place
