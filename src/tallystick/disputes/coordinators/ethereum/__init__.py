"""A coordinator that is an Ethereum contract, for parties who trust no common host."""
