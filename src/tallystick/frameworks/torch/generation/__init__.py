"""Language models that generate, and what is kept of their hidden states."""
