"""Frauds against claims of inference: each gives the values that a dishonest prover would claim."""
