"""OpenAI's Realtime API: its messages in both directions."""
