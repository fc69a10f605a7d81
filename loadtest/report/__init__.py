"""What results of the load test look like: pages, single pictures, and comparisons."""
