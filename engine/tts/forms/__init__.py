"""Forms in which voices are published: one module each, which reads descriptions and imports no library of voices."""
