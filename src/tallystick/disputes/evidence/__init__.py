"""Between the game and real runs: manifests, what a prover opens, what a challenger doubts, who is at fault."""
