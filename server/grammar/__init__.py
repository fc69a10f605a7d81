"""From the required form of an answer to a grammar for the engine."""
