"""Data with a root: artifacts, ordered records, tokens, and the order in which they are trained on."""
