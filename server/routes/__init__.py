"""The endpoints, one file a family; each is thin: decode, admit, generate, encode."""
