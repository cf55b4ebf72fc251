"""Limits of training: how far honest stacks lie apart, and the smallest cheats that are caught."""
