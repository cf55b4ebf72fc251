"""The leaf of a dispute: one operator in a portable bundle, and the check that rules on it."""
