"""Records a custom training loop: what it does is watched, captured and checked while it runs."""
