"""OpenAI's Realtime API: what goes over its WebSocket, both ways."""
