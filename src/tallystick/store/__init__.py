"""Run directories and the logs inside them."""

from tallystick.store.files import read_document, write_atomically
from tallystick.store.inference import InferenceDirectory, claims_inference
from tallystick.store.lock import RunLock, lock_new_run
from tallystick.store.log import LogWriter, Opened, appending, open_line, read_lines
from tallystick.store.run import RunDirectory

__all__ = [
    "InferenceDirectory",
    "LogWriter",
    "Opened",
    "RunDirectory",
    "RunLock",
    "appending",
    "claims_inference",
    "lock_new_run",
    "open_line",
    "read_document",
    "read_lines",
    "write_atomically",
]
