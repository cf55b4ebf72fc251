"""The programs of the parties: each watches a coordinator and makes its party's moves, through any crash."""
