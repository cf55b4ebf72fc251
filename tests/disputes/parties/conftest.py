"""Games in this folder survive the death of programs, not of machines: nothing waits for a disk, or leaves this one."""

from __future__ import annotations

import os

import pytest

from tests.recording.serving.conftest import loopback_only

__all__ = ["loopback_only"]


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
