"""Load generators and benchmarks."""
