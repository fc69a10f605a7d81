"""HTTP and WebSockets: listening, limits, TLS, refusals and errors in the shape of each protocol, SSE."""
