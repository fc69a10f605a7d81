"""Clients' connections: WebSockets and calls, dialects of events, the queue to the client."""
