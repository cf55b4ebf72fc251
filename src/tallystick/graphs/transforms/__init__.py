"""Graphs out of graphs: with a sampler at the end, or over a whole sequence instead of one token."""
