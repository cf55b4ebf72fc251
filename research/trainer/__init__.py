"""Settings of the Hugging Face Trainer, each recorded and audited in a process of its own."""
