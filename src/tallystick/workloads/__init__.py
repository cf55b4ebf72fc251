"""What is run: a plan of batches, a program of steps, a language model."""
