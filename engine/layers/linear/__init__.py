"""Products by weights in every format, with adapters and over several workers."""
