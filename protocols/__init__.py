"""Wire and actor messages: msgspec structs, their validation and codecs. No I/O, no torch."""
