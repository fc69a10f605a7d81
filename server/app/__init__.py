"""The application: its state, its models, and its life from start to end."""
