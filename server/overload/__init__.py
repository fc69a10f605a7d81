"""Overload protection: a bounded queue, deadlines, memory limits, and disconnecting slow readers."""
