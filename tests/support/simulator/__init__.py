"""A simulator of everybody at once: one seed, one clock, and every law of the game checked after every move."""
