"""Calibration: measures on this machine how far honest stacks lie apart, to set the limits of a verifier."""
