"""The game of a dispute: moves, state, rules, and who is owed what. Pure functions."""
