"""What children that may be killed are spoken to through."""
