"""State shared by the routes of one server."""
