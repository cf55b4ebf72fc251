"""How far hidden states of honest stacks lie apart, and the limits of fingerprints that follow."""
