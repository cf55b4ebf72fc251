"""A coordinator in a database: used in the same process, or over HTTP."""
