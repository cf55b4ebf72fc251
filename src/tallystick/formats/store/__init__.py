"""Run directories and the logs inside them."""
