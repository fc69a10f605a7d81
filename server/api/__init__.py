"""The families of endpoints: each translates its requests, asks for deltas, and encodes them."""
