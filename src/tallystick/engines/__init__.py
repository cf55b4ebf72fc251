"""The only place where PyTorch and the libraries around it are imported."""
