"""From logits to tokens: penalties, masks, the draw, log-probabilities."""
