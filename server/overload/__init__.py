"""What keeps a crowd bearable: a bounded queue, deadlines, and an end to clients that do not read."""
