"""``stentor bench sweep``: the same load over a range of concurrency, rate or any other parameter."""
