"""Pictures and sounds in the rows of a step."""
