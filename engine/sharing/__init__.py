"""Resources shared by the workers of several models: the device (by a lease), CPUs, prepared weights."""
