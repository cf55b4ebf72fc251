"""Provers that cheat in a dispute and defend it, each with how the dispute has to end; and their honest twins."""
