"""A language model served over HTTP, with a receipt in every answer."""
