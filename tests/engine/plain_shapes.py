"""The shapes of a model's weights as a checkpoint holds them: those that the model registers where all are plain."""

import torch

from stentor.engine.layers.layer_context import LayerContext
from stentor.engine.model_config.encoder_decoder_config import EncoderDecoderConfig
from stentor.engine.model_config.model_spec import ModelSpec
from stentor.engine.models.decoder import Decoder
from stentor.engine.models.encoder_decoder import EncoderDecoder


def plain_shapes(config: ModelSpec | EncoderDecoderConfig) -> dict[str, tuple[int, ...]]:
    """By name, in model order. Nothing is allocated."""
    context = LayerContext(torch.device("cpu"), torch.float32, False, shapes_only=True)
    model = EncoderDecoder(config, context) if isinstance(config, EncoderDecoderConfig) else Decoder(config, context, 1)
    return model.weights.shapes
