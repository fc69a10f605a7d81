"""Media to a model's inputs: processors of transformers and our own, in a killable child."""
