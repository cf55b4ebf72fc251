"""PyTorch's ATen operators, under the names that its graphs print."""
