"""Reads what provers and verifiers keep in files, and writes it into the workload database."""
