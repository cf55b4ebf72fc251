"""What checks of served answers see: every cheat and honest way, against tokens and bytes."""
