"""What the families share: reading a body, forms, pages of a list, chunks of a stream."""
