"""A campaign on a real model: honest answers of a server, every way to cheat, and what receipts show of them."""
