"""What every HTTP server here shares, and the client of one."""
