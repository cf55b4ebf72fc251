"""A language model served over HTTP with a receipt in every answer; the parts are imported from their modules."""
