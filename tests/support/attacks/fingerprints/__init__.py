"""Hidden states and fingerprints other than those of the promised model at work."""
