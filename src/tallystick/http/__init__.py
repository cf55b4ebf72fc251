"""What every HTTP server here shares: connection limits, bodies, keys, problems, uploads, listening; and the client."""
