"""Coordinators, which keep the order of moves, the time and the money: in a database, or in a contract."""
