"""Shared by the wire formats: errors, limits, decoding of bodies, location of faults in them."""
