"""What every HTTP server here shares: limits, guards, bodies, listening."""
