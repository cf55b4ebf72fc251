"""What lets vLLM's V2 runner run on a CPU; its folder stands on the path of modules of the server's processes."""
