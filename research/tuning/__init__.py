"""Fine-tuning of a real model: the training, and the page of its figures."""
