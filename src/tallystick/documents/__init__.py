"""Documents and files: read strictly, written so that a crash leaves the old one or the new one."""
