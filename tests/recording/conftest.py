"""What all tests of recording share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test loses power, so none waits for the disk: processes that are killed leave what they have written."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(os, "sync", lambda: None)
