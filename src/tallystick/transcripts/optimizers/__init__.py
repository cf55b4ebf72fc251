"""The settings of optimizers, one file for each."""
