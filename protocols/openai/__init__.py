"""OpenAI's wire types."""
