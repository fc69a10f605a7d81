"""Shared by the families: reading bodies and forms, pages of lists, chunks of streams."""
