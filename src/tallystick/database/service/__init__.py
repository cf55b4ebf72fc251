"""The HTTP interface of a workload database: rows, openings with proofs, files, runs that are sent, challenges."""
