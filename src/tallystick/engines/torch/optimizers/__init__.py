"""The arithmetic of optimizers, one file for each."""
