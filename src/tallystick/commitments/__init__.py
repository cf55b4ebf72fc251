"""One encoding, one digest, one tree, one source of public randomness."""
