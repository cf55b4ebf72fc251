"""Clusters out of the configuration of SLURM."""
