"""From Anthropic's messages to a request for chat."""
