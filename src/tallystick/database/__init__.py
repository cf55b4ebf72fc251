"""The workload database: what it holds, how it is asked, and the only place that knows SQL."""
