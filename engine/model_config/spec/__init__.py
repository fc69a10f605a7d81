"""The shape of a model: its layers, what each computes, and how tokens are predicted ahead."""
