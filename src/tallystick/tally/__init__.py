"""What commands do, as functions, and the command itself."""
