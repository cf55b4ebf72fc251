"""The economics of disputes: when cheating does not pay, who is paid, and what spam, delay and collusion cost."""
