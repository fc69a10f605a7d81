"""Pictures, sounds and videos of requests: where they come from, what they hold, what models are given of them."""
