"""The economics of disputes: when cheating is irrational, who is paid, and what spam, delay and collusion cost."""
