"""OpenAI's wire types: what a client may send, what it gets back, and the limits on both."""
