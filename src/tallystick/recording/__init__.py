"""Recorders turn a running workload into a transcript."""
