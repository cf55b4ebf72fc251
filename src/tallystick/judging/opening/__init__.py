"""What a prover opened of one step or call: its files, what binds them together, and the verdict on them."""
