"""Messages of Anthropic's API, by way of a request for chat."""
