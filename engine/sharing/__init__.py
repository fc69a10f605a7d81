"""What workers of several models share: the device by a lease, and prepared weights."""
