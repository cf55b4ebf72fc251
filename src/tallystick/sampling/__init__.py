"""The token that a sampler chooses from logits."""

from tallystick.sampling.choose import choose, kept, scores, weights

__all__ = ["choose", "kept", "scores", "weights"]
