"""What all parts of a realtime session share: formats of audio, memory, interfaces, services of the server."""
