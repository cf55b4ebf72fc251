"""Training from a recipe, for the prover who trains and the verifier who replays."""
