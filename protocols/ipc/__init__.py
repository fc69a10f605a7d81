"""Messages between the processes of one server: msgspec structs and their codecs."""
