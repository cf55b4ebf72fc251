"""Clients of a service over a workload database: its rows, its runs, and how runs are sent to it."""
