"""Servers on this machine's own addresses."""

from tests.recording.serving.conftest import loopback_only

__all__ = ["loopback_only"]
