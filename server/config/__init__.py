"""Everything that an operator can set, as one typed tree."""
