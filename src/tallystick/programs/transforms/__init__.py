"""Transformations of graphs: add a sampler at the end, or turn a step over one token into a pass over a sequence."""
