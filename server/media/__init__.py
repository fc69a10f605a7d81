"""What a request names by its address: fetched within bounds, and from nowhere that the operator did not open."""
