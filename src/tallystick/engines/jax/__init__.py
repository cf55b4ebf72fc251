"""JAX: functions captured as StableHLO graphs, and run."""
