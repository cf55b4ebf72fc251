"""Audits replay what was recorded and judge the difference under the verifier's own policy."""
