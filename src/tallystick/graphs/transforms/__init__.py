"""Graphs out of graphs: with a sampler at the end, or over a whole sequence instead of one token."""

from tallystick.graphs.transforms.sampling import with_sampler

__all__ = ["with_sampler"]
