"""Language models that generate, and the records of their hidden states."""
