"""``stentor bench vision``: pictures a second through a model's vision tower, ours and transformers', in turn.

    stentor bench vision loadtest/configs/smolvlm-256m --dtype float32 bfloat16 --threads 2 --rounds 5

Weights are made up (only ``config.json`` is needed), and both sides have the same. In each round both get the same
pictures, one side after the other, and the side that begins changes with the round. CPU time is that of all threads: on
a machine with neighbours a steadier figure than the time.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.config_fields import ConfigError, Fields
from stentor.engine.model_config.towers.vision_hf import vision_spec_from_hf
from stentor.engine.model_config.towers.vision_spec import VisionSpec
from stentor.engine.models.towers.payload import Payload
from stentor.engine.models.towers.vision_tower import VisionTower
from stentor.kernels.tuning.timing import machine

from .record import Record
from .series import CONFIGS
from .tool import UsageError, at_least, make_parser, run_tool, table

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OURS, THEIRS = "stentor", "transformers"
_TEXT: Final[Mapping[str, int]] = {"num_hidden_layers": 1, "vocab_size": 64, "pad_token_id": 0}
"""Of the decoder that transformers' model class comes with, which nothing is asked of."""

Encode = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class TimedSide:
    """``seconds`` and ``cpu_seconds`` are medians of a round's pictures."""

    side: str
    dtype: str
    pictures_per_second: float
    seconds: float
    cpu_seconds: float
    ratio: float
    """Median of transformers' time over this side's in the same round."""
    cpu_ratio: float
    difference: float
    """Of its embeddings from those that transformers makes in float32: the root of mean squares, by that of these."""


class VisionSpeed(Record, frozen=True, kw_only=True, tag="vision"):
    model: str
    patches: int
    """Of a picture."""
    pictures: int
    """Of a round."""
    timed: list[TimedSide]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, print_figures)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> VisionSpeed:
    try:
        config = dict(read_json(arguments.model / "config.json"))
        hidden = Fields(Fields(config).table("text_config") or {}).integer("hidden_size")
        spec = vision_spec_from_hf(config, hidden)
    except (ConfigError, CheckpointError) as error:
        raise UsageError(f"{arguments.model}: {error}") from None
    side = arguments.side or Fields(Fields(config).table("vision_config") or {}).integer("image_size", 448)
    given = [made_up(spec, arguments.pictures, side, number) for number in range(arguments.rounds + 1)]
    timed: list[TimedSide] = []
    with threads(arguments.threads):
        reference = None
        for dtype in ("float32", *(name for name in arguments.dtype if name != "float32")):
            model = transformers_model(config, DTYPES[dtype])
            if reference is None:
                reference = encode_with(model)(given[0])
            if dtype in arguments.dtype:
                sides = {OURS: encode_by(spec, model, DTYPES[dtype]), THEIRS: encode_with(model)}
                timed += compare(sides, given, dtype, reference)
    about["machine"] = {**about["machine"], **machine(torch.device("cpu")), "threads": str(arguments.threads)}
    patches = (side // spec.patch) ** 2
    return VisionSpeed(model=spec.architecture, patches=patches, pictures=arguments.pictures, timed=timed, **about)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """As many for torch and for our kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def made_up(spec: VisionSpec, pictures: int, side: int, seed: int) -> dict[str, torch.Tensor]:
    """What a processor would make of so many pictures of ``side`` pixels a side."""
    generator = torch.Generator().manual_seed(seed)
    if spec.source == "patches":
        rows = side // spec.patch
        values = torch.randn(pictures * rows * rows, spec.patch_values, generator=generator)
        return {"pixel_values": values, "image_grid_thw": torch.tensor([[1, rows, rows]] * pictures)}
    values = torch.randn(pictures, spec.channels, side, side, generator=generator)
    if spec.source == "sized":
        return {"pixel_values": values, "image_sizes": torch.tensor([[side, side]] * pictures)}
    return {"pixel_values": values.unsqueeze(0) if spec.positions == "buckets" else values}


def transformers_model(config: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """With weights that are the same for every dtype, but for rounding."""
    from transformers import AutoConfig, AutoModelForImageTextToText  # late: heavy

    text = {**config["text_config"], **_TEXT}
    described = AutoConfig.for_model(**{**config, "text_config": text})
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(described, dtype=torch.float32)
    return model.to(dtype).eval()


def encode_with(model: Any) -> Encode:
    def encode(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        pixels = tensors["pixel_values"].to(model.dtype)
        with torch.inference_mode():
            found = model.get_image_features(**{**tensors, "pixel_values": pixels}, return_dict=True).pooler_output
        parts = [found] if isinstance(found, torch.Tensor) else list(found)
        return torch.cat([part.flatten(0, -2) for part in parts]).float()

    return encode


def encode_by(spec: VisionSpec, model: Any, dtype: torch.dtype) -> Encode:
    """Our tower with the weights of transformers' model."""
    tower = VisionTower(spec, LayerContext(torch.device("cpu"), dtype, False, packed=True))
    others = {id(each) for part in (model.get_decoder(), model.get_output_embeddings()) for each in part.parameters()}
    tower.load((name, tensor.detach()) for name, tensor in model.named_parameters() if id(tensor) not in others)
    return lambda tensors: tower.encode(Payload("image", tensors)).embeddings.float()


def compare(
    sides: Mapping[str, Encode], given: list[dict[str, torch.Tensor]], dtype: str, reference: torch.Tensor
) -> Iterator[TimedSide]:
    """The first of ``given`` warms both sides up."""
    differences = {name: _difference(encode(given[0]), reference) for name, encode in sides.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number, tensors in enumerate(given[1:]):
        for name in sorted(sides, reverse=bool(number % 2)):
            wall, cpu = time.perf_counter(), time.process_time()
            sides[name](tensors)
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    pictures = _pictures(given[0])
    for name, taken in times.items():
        pairs = list(zip(times[THEIRS], taken, strict=True))
        yield TimedSide(
            side=name,
            dtype=dtype,
            pictures_per_second=statistics.median(pictures / wall for wall, _ in taken),
            seconds=statistics.median(wall for wall, _ in taken),
            cpu_seconds=statistics.median(cpu for _, cpu in taken),
            ratio=statistics.median(theirs[0] / own[0] for theirs, own in pairs),
            cpu_ratio=statistics.median(theirs[1] / own[1] for theirs, own in pairs),
            difference=differences[name],
        )


def _pictures(tensors: Mapping[str, torch.Tensor]) -> int:
    if "image_grid_thw" in tensors:
        return len(tensors["image_grid_thw"])
    return tensors["pixel_values"].shape[-4]


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def print_figures(console: Console, record: VisionSpeed) -> None:
    rows = [
        [
            each.side,
            each.dtype,
            f"{each.pictures_per_second:.3f}",
            f"{each.cpu_seconds / record.pictures:.3f}",
            f"{each.ratio:.2f}",
            f"{each.cpu_ratio:.2f}",
            f"{each.difference:.1e}",
        ]
        for each in record.timed
    ]
    columns = ("side", "dtype", "pictures/s", "CPU s a picture", "times theirs", "CPU times theirs", "off float32")
    about = record.machine
    title = (
        f"{record.model}: {record.patches:,} patches a picture, {record.pictures} a round; {about.get('cpu', '')}, "
        f"threads: {about['threads']}"
    )
    console.print(table(columns, rows, left=2, title=title))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vision", __doc__)
    parser.add_argument(
        "model", type=Path, nargs="?", default=CONFIGS / "smolvlm-256m", help="a folder with config.json"
    )
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--threads", type=at_least(1), default=torch.get_num_threads(), help="of each side")
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--pictures", type=at_least(1), default=1, help="of a round, together")
    parser.add_argument("--side", type=at_least(1), help="pixels of a side; the model's own unless given")
    return parser
