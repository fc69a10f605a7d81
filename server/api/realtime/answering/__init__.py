"""The responses of a session: from the conversation to text, speech and events."""
