"""From the engine's tokens to typed deltas: choices, stop strings, parsed parts, beams."""
