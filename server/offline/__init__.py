"""The server without a socket: for programs that bring their own prompts, and for files of requests."""
