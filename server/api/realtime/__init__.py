"""Sessions of OpenAI's Realtime API."""
