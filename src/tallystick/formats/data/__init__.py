"""Data with a root: corpora of shards, ordered records, tokens, and the order in which they are trained on."""
