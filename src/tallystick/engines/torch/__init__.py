"""PyTorch: what training, capture and generation share."""
