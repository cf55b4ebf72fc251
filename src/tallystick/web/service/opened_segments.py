"""Segments that were opened for verifiers: each is written once, and kept while it is asked for."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.http.problems import Problem
from tallystick.recorders.segment_opening import open_segment
from tallystick.store.run import RunDirectory

Key = tuple[str, str, int, int]
AT_ONCE = 2


@dataclass
class OpenedSegments:
    """At most `most` segments lie in a folder of their own, the one that was not used longest goes first."""

    most: int
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="tally-segments-")))
    _held: OrderedDict[Key, Path] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _writing: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(AT_ONCE))
    _count: int = 0

    def opened(self, name: str, run: RunDirectory, start: int, end: int) -> Path:
        """The folder of a segment; raises `Problem` 429 while too many others are written, and as `open_segment`."""
        key = (name, str(run.claim().identity), start, end)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        if not self._writing.acquire(blocking=False):
            raise Problem(429, "busy", "other segments are being opened; come back", headers={"Retry-After": "1"})
        try:
            return self._written(key, run)
        finally:
            self._writing.release()

    def close(self) -> None:
        """Delete all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _written(self, key: Key, run: RunDirectory) -> Path:
        with self._lock:
            self._count += 1
            out = self.folder / str(self._count)
        try:
            open_segment(run, key[2], key[3], out)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
        with self._lock:
            if key in self._held:  # somebody else was as fast
                shutil.rmtree(out, ignore_errors=True)
            else:
                self._held[key] = out
            gone = [self._held.popitem(last=False)[1] for _ in range(len(self._held) - self.most)]
            found = self._held[key]
        for folder in gone:
            shutil.rmtree(folder, ignore_errors=True)
        return found
