"""OpenAI's wire types: requests, responses, and their limits."""
