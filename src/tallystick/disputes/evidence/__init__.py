"""The link between the game and real runs: what a prover opens, what a challenger doubts, and who is at fault."""
