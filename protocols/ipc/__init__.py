"""What the processes of one server say to each other, and how: msgspec structs and their codecs."""
