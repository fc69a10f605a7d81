"""Files, and batches of requests that stand in them."""
