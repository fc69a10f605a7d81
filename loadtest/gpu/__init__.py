"""What is run on a machine with a GPU: tests, benchmarks and a server, within minutes."""
