"""Timelines of profilers as events: read as a stream, sorted on disk, and mapped to nodes of a graph."""
