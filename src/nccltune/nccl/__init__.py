"""What is known of NCCL: its variables, their spelling in each version, and what its log says."""
