"""The programs of the parties: each reads a coordinator, makes its party's moves, and continues after any crash."""
