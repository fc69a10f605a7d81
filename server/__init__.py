"""Frontend: HTTP routes, tokenizer pool, command line."""
