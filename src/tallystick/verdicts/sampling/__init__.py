"""The token that a sampler chooses from logits."""
