"""Calibration: how far honest stacks lie apart, measured on this machine for the limits of a verifier."""
