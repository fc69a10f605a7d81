"""The values of the codes of four-bit formats that are not evenly spaced."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Floats with two exponent bits and one fraction bit (OCP Microscaling Formats specification 1.0). The negative zero is
a plain zero."""
IQ4_NL = (-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0)
"""ggml's ``kvalues_iq4nl``."""
