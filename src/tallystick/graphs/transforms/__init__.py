"""Graphs out of graphs: with a sampler at the end, or over a whole sequence instead of one token."""

from tallystick.graphs.transforms.sampling import with_sampler
from tallystick.graphs.transforms.teacher_forcing import to_teacher_forcing

__all__ = ["to_teacher_forcing", "with_sampler"]
