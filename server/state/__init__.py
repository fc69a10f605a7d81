"""What the routes of one server share."""
