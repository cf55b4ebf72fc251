"""Where two runs that should be equal begin to differ: step, tensor, operator."""
