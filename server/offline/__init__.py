"""The server without a socket: for programs with their own prompts, and for files of requests."""
