"""Training from a recipe, for provers who train and verifiers who replay."""
