"""Pages over the workload database, one view for each noun, each with a twin in JSON."""
