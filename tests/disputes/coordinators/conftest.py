"""Coordinators are served on loopback sockets; connections to anywhere else still fail."""

from __future__ import annotations

from tests.recording.serving.conftest import loopback_only

__all__ = ["loopback_only"]
