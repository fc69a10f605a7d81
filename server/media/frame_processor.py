"""Videos as frames, where transformers' own video processors cannot be had: they need torchvision."""


class FrameProcessor:
    """Takes the place of a video processor in a processor that takes pictures alone."""

    model_input_names = ()
