"""Measures how far honest stacks lie from the exact result of each operator of a graph."""
