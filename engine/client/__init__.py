"""In the server process: what an engine is asked through, and what goes on with another engine when one is lost."""
