"""How far is too far: tolerances, judges of operators and openings, and verdicts with their words."""
