"""A coordinator kept in a database: in process, or behind HTTP for parties elsewhere."""
