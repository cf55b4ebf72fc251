"""IREE: graphs compiled to its byte code."""
