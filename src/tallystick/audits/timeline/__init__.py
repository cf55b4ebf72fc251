"""Audits of a reported timeline against the graph and the devices that it names."""
