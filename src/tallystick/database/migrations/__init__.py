"""How the tables came to be, one step a file; Alembic runs them."""
