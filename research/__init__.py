"""Studies and campaigns: each is a command, run from a clone, that measures something and writes a page of docs."""
