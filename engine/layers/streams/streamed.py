"""The residual streams of a model that has several, and its layers over them."""

from collections.abc import Sequence

from ...model_config.spec.model import Backbone
from ...model_config.spec.streams import AltUpSpec, BlockResidualSpec, HyperSpec, StreamMixSpec
from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap
from ..per_layer import PerLayerInputs
from ..rotary import RotaryTables
from .altup import AltUp, Streams
from .block_residuals import BlockResidualLayer, BlockResiduals
from .hyper import HyperConnected, HyperStreams
from .stream_mix import MixedLayer, MixedStreams

AnyStreams = Streams | HyperStreams | MixedStreams | BlockResiduals
StreamedLayer = AltUp | HyperConnected | MixedLayer | BlockResidualLayer


def streamed_layers(
    weights: WeightMap,
    model: Backbone,
    rotary: RotaryTables,
    context: LayerContext,
    inputs: PerLayerInputs | None = None,
) -> tuple[AnyStreams, Sequence[StreamedLayer]]:
    """What widens embeddings to the streams and narrows these, and the layers between."""
    numbers = range(len(model.layers))
    match model.streams:
        case AltUpSpec() as altup:
            assert inputs is not None, "streams are corrected by an embedding of each layer"
            return Streams(weights, altup, model, context), [
                AltUp(weights, at, model, rotary, context, inputs) for at in numbers
            ]
        case HyperSpec() as hyper:
            return HyperStreams(weights, hyper, model, context), [
                HyperConnected(weights, at, hyper, model, rotary, context) for at in numbers
            ]
        case StreamMixSpec() as mixed:
            return MixedStreams(weights, mixed, model, context), [
                MixedLayer(weights, at, model, rotary, context) for at in numbers
            ]
        case BlockResidualSpec() as kept:
            residuals = BlockResiduals(weights, kept, model, context)
            stored: dict[int, BlockResidualLayer] = {}
            layers = []
            for at in numbers:
                if (earlier := stored.get(model.stored(at))) is None:
                    made = BlockResidualLayer(weights, at, kept, model, rotary, context, residuals.queries)
                    stored[model.stored(at)] = made
                else:
                    made = earlier.again(weights, at, model, rotary, context)
                layers.append(made)
            return residuals, layers
        case None:
            raise ValueError(f"{model.architecture} has one residual stream")
