"""What we run on: GPUs through NVML, CPU, memory, and who else is using them."""
