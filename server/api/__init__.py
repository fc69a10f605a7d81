"""The families of endpoints: each translates its requests, runs them, and encodes the deltas."""
