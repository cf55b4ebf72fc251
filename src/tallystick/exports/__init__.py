"""Shows runs and their verdicts where people already look."""
