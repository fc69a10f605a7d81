"""What encodes pictures, videos and sounds for a decoder."""
