"""Ways to serve a cheaper language model than the promised one."""
