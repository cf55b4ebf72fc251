"""Models and training steps captured as graphs."""
