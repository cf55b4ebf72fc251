"""What the workload database shows to others: pages for people, and a service for programs."""
