"""What happened on which device when: clusters, events of a trace, and what speaks against a trace."""
