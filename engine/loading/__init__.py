"""From a name to local files, and from files to named tensors."""
