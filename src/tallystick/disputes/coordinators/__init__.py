"""Who keeps the order of moves, the time and the money: a database, or a contract."""
