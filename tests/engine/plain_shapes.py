"""The shapes of a model's weights as a checkpoint holds them: those that the model registers where all are plain."""

import torch

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.speech.encoder_decoder import EncoderDecoderConfig
from stentor.engine.models.decoder import Decoder
from stentor.engine.models.encoder_decoder import EncoderDecoder


def plain_shapes(config: ModelSpec | EncoderDecoderConfig) -> dict[str, tuple[int, ...]]:
    """By name, in model order. Nothing is allocated."""
    context = LayerContext(torch.device("cpu"), torch.float32, False, shapes_only=True)
    model = EncoderDecoder(config, context) if isinstance(config, EncoderDecoderConfig) else Decoder(config, context, 1)
    return model.weights.shapes
