"""Every page of `spec/`: read and written here and nowhere else."""
