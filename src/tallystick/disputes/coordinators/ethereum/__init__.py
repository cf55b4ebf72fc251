"""A coordinator that is an Ethereum contract, for parties that trust no common host."""
