"""The opening of one step or call: its files, the checks that bind them together, and the verdict on them."""
