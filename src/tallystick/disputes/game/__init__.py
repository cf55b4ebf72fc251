"""The game: its moves, its state, its rules, and who is owed what. Pure functions."""
