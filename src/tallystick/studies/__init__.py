"""Studies measure what audits rest on: how far honest stacks drift apart, and how small a cheat still shows."""
