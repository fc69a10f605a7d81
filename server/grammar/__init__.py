"""From what a request says of the form of its answer to a grammar that the engine holds the model to."""
