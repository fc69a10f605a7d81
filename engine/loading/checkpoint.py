"""Opens a model's folder or file: format, architecture, types, recommended sampling.

Only headers are read, without torch: the server opens checkpoints too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from stentor.protocols.ipc.config import LoadFormat, ModelImpl

from ..model_config.config_fields import ConfigError
from ..model_config.encoders.pooling import PoolingConfig
from ..model_config.gguf.config import model_spec_from_gguf
from ..model_config.hf.text_names import is_of_tower, text_name
from ..model_config.registry import read_config
from ..model_config.seq2seq.text import HONOURED, TextToTextConfig
from ..model_config.spec.encoder import EncoderConfig
from ..model_config.spec.model import HEADS, Backbone, ModelSpec
from ..model_config.speech.encoder_decoder import EncoderDecoderConfig
from ..model_config.speech.framewise import FramewiseConfig
from ..model_config.speech.streamed import StreamedConfig
from ..model_config.speech.whisper import ARCHITECTURE as WHISPER
from ..model_config.tensor_parallel.rank_part import RankPart
from ..model_config.towers.vision_spec import VisionSpec
from ..model_config.transformers_config import TransformersSpec
from ..quantization.formats import Format, GGUFFormat, QuantizedCheckpoint
from ..quantization.parse import FILES, parse_quantization
from ..quantization.stored_tensors import correct_by_tensors
from .companions import described_model, with_companions
from .ct2_file import read_ct2
from .ct2_whisper import tensors as ct2_tensors
from .ct2_whisper import whisper_config
from .errors import CheckpointError
from .generation_config import GenerationConfig, generation_config_from_gguf, generation_config_from_hf
from .gguf.file import GGUFFile
from .gguf.mmproj_names import is_mmproj
from .gguf.tensors import check_tensors, read_floats, stored_part
from .gguf.types import FLOATS, GGMLType
from .safetensors_index import DTYPES, QUANTIZED_DTYPES, StoredTensor, read_json
from .split_names import first_parts
from .weight_files import MISTRAL_PARAMS, has_pytorch, has_safetensors, weight_format, weight_index

if TYPE_CHECKING:
    from .gguf.mmproj import PairedModel
    from .gguf.mmproj_modules import ModuleParts

CheckpointFormat = Literal["safetensors", "pytorch", "gguf", "ct2", "dummy"]

_CT2_FILE = "model.bin"
_UNUSED = (
    *(".attn.bias", ".attention.bias", ".crossattention.bias", ".num_batches_tracked", ".relative_position_index"),
    *(f".ple_embedding.{each}" for each in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")),
    *(".summary_idxs", ".embeddings.position_ids"),
)
"""Integers that are not used: attention masks in files of GPT-2 and GPT-NeoX, counts of norms over batches, and what
follows from the configuration in files of Swin, Qwen4, C-RADIO and BLIP."""
_NUMBERS = (".tid2eid",)
"""Tables of integers in files of DeepSeek-V4."""

_GGUF_DTYPES: Mapping[GGMLType, str] = {
    GGMLType.F32: "float32",
    GGMLType.F16: "float16",
    GGMLType.BF16: "bfloat16",
}


class StoredTower(msgspec.Struct, frozen=True):
    """A media encoder's weights in the files of a model that takes media."""

    files: tuple[Path, ...]
    nbytes: int
    described: Mapping[str, object]
    """The config.json, or its equivalent made from a GGUF file and its projector."""
    projector: "VisionSpec | ModuleParts | None" = None
    """The contents of a projector file (llama.cpp's ``mmproj``), if there is one: a vision tower's spec, or the file's
    names of an audio tower's parts."""
    quantized: QuantizedCheckpoint | None = None
    """Weight formats of the projector file; None if all are plain."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A model on disk, opened and checked as far as its headers allow."""

    format: CheckpointFormat
    folder: Path
    files: tuple[Path, ...]
    """Weight files in the order of reading; empty for dummy weights."""
    config: ModelSpec | EncoderDecoderConfig | TextToTextConfig | FramewiseConfig | StreamedConfig | PoolingConfig
    dtype: str
    """The type of most weight bytes: torch's name for floats, GGUF's (``Q4_1``) for blocks."""
    defaults: GenerationConfig
    stored_bytes: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Bytes of weights by stored type, most first."""
    quantized: QuantizedCheckpoint | None = None
    """The quantisation; None if all weights are plain."""
    tower: StoredTower | None = None
    """The media encoder, if there is one; not counted above."""
    notes: tuple[str, ...] = ()
    """Notes for the operator about unused files beside the model."""
    part: RankPart | None = None
    """This worker's part of the model, if several split it."""

    @property
    def total_bytes(self) -> int:
        """Bytes of weights as stored."""
        return sum(self.stored_bytes.values())

    @property
    def described(self) -> Mapping[str, object] | None:
        """The config.json, or its equivalent, of a model that may take media; None for a text model.

        Raises :class:`CheckpointError`.
        """
        if self.tower is not None:
            return self.tower.described
        file = self.folder / "config.json"
        return (
            described_model(self.folder, read_json(file))
            if self.format not in ("gguf", "ct2") and file.is_file()
            else None
        )

    @property
    def is_text_part(self) -> bool:
        """Whether the checkpoint has a media encoder besides the decoder that ``config`` describes."""
        spec = self.config.backbone if isinstance(self.config, PoolingConfig) else self.config
        return isinstance(spec, Backbone) and spec.text_part

    @property
    def decoder(self) -> ModelSpec:
        """The spec of a decoder. Raises :class:`CheckpointError` for another kind of model."""
        if isinstance(self.config, TextToTextConfig):
            raise CheckpointError(
                f"{self.folder} is an encoder-decoder ({self.config.architecture}), and a decoder is expected here."
            )
        if not isinstance(self.config, ModelSpec):
            raise CheckpointError(
                f"{self.folder} is a speech recognition model ({self.config.architecture}), and a language model is "
                "expected here: give it as --transcription-model, beside a language model."
            )
        return self.config

    @property
    def own_decoder(self) -> ModelSpec:
        """The part of :attr:`decoder` that this worker has, if several split it."""
        decoder = self.decoder
        own = decoder if self.part is None else self.part.spec
        assert isinstance(own, ModelSpec)
        return own

    @property
    def pooling(self) -> PoolingConfig:
        """The config of a pooling model. Raises :class:`CheckpointError` for another kind of model."""
        if not isinstance(self.config, PoolingConfig):
            raise CheckpointError(f"{self.folder} is a {self.config.architecture}, opened to draw tokens.")
        return self.config

    @property
    def own_pooling(self) -> PoolingConfig:
        """As :attr:`pooling`, with the part of the backbone that this worker has, if several split it."""
        if self.part is None:
            return self.pooling
        assert isinstance(self.part.spec, EncoderConfig | ModelSpec)
        return replace(self.pooling, backbone=self.part.spec)

    @property
    def streamed(self) -> StreamedConfig:
        """The config of a streaming transcription model. Raises :class:`CheckpointError` for another kind of model."""
        if not isinstance(self.config, StreamedConfig):
            raise CheckpointError(
                f"{self.folder} is a {self.config.architecture}, expected a streaming transcription model."
            )
        return self.config

    @property
    def encoder_decoder(self) -> EncoderDecoderConfig:
        """The config of a transcription model. Raises :class:`CheckpointError` for another kind of model."""
        if not isinstance(self.config, EncoderDecoderConfig):
            raise CheckpointError(
                f"{self.folder} is a language model ({self.config.architecture}), and a speech recognition model "
                f"({WHISPER}) is expected here."
            )
        return self.config

    @property
    def text_to_text(self) -> TextToTextConfig:
        """The config of an encoder-decoder of text. Raises :class:`CheckpointError` for another kind of model."""
        if not isinstance(self.config, TextToTextConfig):
            raise CheckpointError(
                f"{self.folder} is a {self.config.architecture}, expected an encoder-decoder of text."
            )
        return self.config

    @property
    def framewise(self) -> FramewiseConfig:
        """The config of a model that decodes frame by frame. Raises :class:`CheckpointError` for another kind."""
        if not isinstance(self.config, FramewiseConfig):
            raise CheckpointError(
                f"{self.folder} is a {self.config.architecture}, and a speech recognition model with a CTC or "
                "transducer head is expected here."
            )
        return self.config


def open_checkpoint(
    path: Path, load_format: LoadFormat = "auto", model_impl: ModelImpl = "auto", mmproj: str = ""
) -> Checkpoint:
    """Open a model: a folder with config.json and safetensors or torch's pytorch_model.bin; a folder with one .gguf
    file or one CTranslate2 model (model.bin) in or below it; or a .gguf file. ``dummy`` needs only the description, not
    the weights.

    Raises :class:`CheckpointError`, with one clear line, if there is no such model or it cannot be used.

    Args:
        model_impl: whose modelling code runs it.
        mmproj: the projector file of a .gguf file; by default a suitable one beside it.
    """
    if not path.exists():
        raise CheckpointError(f"There is no model at {path}: neither a folder nor a .gguf file.")
    found = _opened(path, load_format, model_impl, mmproj)
    if mmproj and found.format != "gguf":
        raise CheckpointError(f"--mmproj {mmproj}: a projector file goes with a .gguf file, and {path} is none.")
    return found


def _opened(path: Path, load_format: LoadFormat, model_impl: ModelImpl, mmproj: str) -> Checkpoint:
    try:
        if load_format == "dummy":
            return _open_dummy(path, model_impl)
        if path.is_file():
            if load_format == "safetensors" or path.suffix != ".gguf":
                raise CheckpointError(
                    f"Cannot load {path}: expected "
                    + ("a folder with config.json." if load_format == "safetensors" else "a folder or a .gguf file.")
                )
            return _native(_open_gguf(path, mmproj), model_impl)
        if load_format == "safetensors" and not has_safetensors(path) and has_pytorch(path):
            raise CheckpointError(f"Cannot load {path}: it holds torch's files alone; leave --load-format out.")
        if load_format == "safetensors" or (load_format == "auto" and _is_plain(path)):
            return _open_plain(path, model_impl)
        if load_format == "auto" and (ct2 := _ct2_in(path)) is not None:
            return _native(_open_ct2(ct2), model_impl)
        return _native(_open_gguf(_gguf_in(path), mmproj), model_impl)
    except ConfigError as error:
        raise CheckpointError(f"Cannot load {path}: {error}.") from error


def _native(checkpoint: Checkpoint, model_impl: ModelImpl) -> Checkpoint:
    """The checkpoint. Raises :class:`CheckpointError` if transformers' modules are requested, which cannot read its
    format."""
    if model_impl == "transformers":
        raise CheckpointError(
            f"Cannot load {checkpoint.folder}: --model-impl transformers reads safetensors, not {checkpoint.format}."
        )
    return checkpoint


def _is_plain(folder: Path) -> bool:
    """Whether the folder has safetensors, or torch's files and no others."""
    others = (folder / _CT2_FILE).is_file() or any(folder.glob("*.gguf"))
    return has_safetensors(folder) or (has_pytorch(folder) and not others)


def _open_plain(folder: Path, model_impl: ModelImpl) -> Checkpoint:
    read_here, generation = _read_configs(folder)
    config, others = with_companions(read_here)
    quantized = described_quantization(folder, config)
    tensors = tuple(tensor for each in (folder, *others) for tensor in weight_index(each))
    read = read_config(config, generation, model_impl)
    defaults = generation_config_from_hf(config, generation, read)
    tower = None
    if isinstance(read, ModelSpec) and read.text_part:
        tower, tensors = text_and_tower(folder, tensors, config)
    if quantized is not None and isinstance(read, TransformersSpec):
        raise CheckpointError(
            f"Cannot load {folder}: its weights are quantised ({quantized.method}), and transformers' modules are "
            "given plain ones here: use a checkpoint of plain weights."
        )
    if quantized is not None:
        quantized = correct_by_tensors(quantized, {tensor.name: tensor.dtype for tensor in tensors})
        if isinstance(read, ModelSpec):
            quantized = replace(quantized, ignore=(*quantized.ignore, *read.expanded_parts))
    if isinstance(read, ModelSpec) and read.tie_embeddings and (head := _stored_head(tensors)) is not None:
        from .tied_head import is_embedding  # late: few files hold such a head

        read = replace(read, tie_embeddings=is_embedding(head, read.embedding, tensors))
    if isinstance(read, TextToTextConfig):
        from .tied_head import with_head

        read = with_head(read, tensors)
        defaults = replace(defaults, unused=tuple(name for name in defaults.unused if name not in HONOURED))
    stored = sizes_of(tensors)
    coded = quantized is not None or (isinstance(read, ModelSpec) and read.expands_experts)
    readable = (*DTYPES.values(), *QUANTIZED_DTYPES) if coded else tuple(DTYPES.values())
    unread = (each for each in tensors if each.dtype not in readable)
    odd = next((each for each in unread if not each.name.endswith((*_UNUSED, *_NUMBERS))), None)
    if odd is not None:
        raise CheckpointError(
            f"Cannot load {folder}: {odd.name!r} is stored as {odd.dtype!r}, expected one of {', '.join(readable)}."
        )
    files = tuple(dict.fromkeys(tensor.file for tensor in tensors))
    return Checkpoint(
        format=weight_format(files),
        folder=folder,
        files=files,
        config=read,
        dtype=next(iter(stored)),
        defaults=defaults,
        stored_bytes=stored,
        quantized=quantized,
        tower=tower,
    )


def _stored_head(tensors: Iterable[StoredTensor]) -> StoredTensor | None:
    return next((tensor for tensor in tensors if tensor.name in HEADS), None)


def text_and_tower(
    folder: Path, tensors: Sequence[StoredTensor], config: Mapping[str, object]
) -> tuple[StoredTower | None, tuple[StoredTensor, ...]]:
    """The media encoder, and the tensors of the text model under the names of a text-only model.

    ``config``: the config.json. Raises :class:`CheckpointError` if there is no text model.
    """
    named = ((text_name(tensor.name), tensor) for tensor in tensors)
    text = tuple(replace(tensor, name=name) for name, tensor in named if name is not None)
    if not text:
        raise CheckpointError(f"Cannot load {folder}: its weight files hold no tensors of a language model.")
    seeing = [tensor for tensor in tensors if is_of_tower(tensor.name)]
    if not seeing:
        return None, text
    files, nbytes = tuple(dict.fromkeys(tensor.file for tensor in seeing)), sum(each.nbytes for each in seeing)
    return StoredTower(files, nbytes, described_model(folder, config)), text


def described_quantization(folder: Path, config: Mapping[str, object]) -> QuantizedCheckpoint | None:
    """The quantisation described by config.json or a file beside it."""
    found = next((name for name in FILES if (folder / name).is_file()), None)
    return parse_quantization(config, read_json(folder / found), FILES[found]) if found else parse_quantization(config)


def _open_gguf(file: Path, mmproj: str = "") -> Checkpoint:
    """``mmproj``: the projector file; "": a suitable one beside the model."""
    from .gguf.mmproj import pair  # late: for GGUF files only

    with GGUFFile(file) as gguf:
        check_tensors(gguf)
        shapes = {name: tensor.shape for name, tensor in gguf.tensors.items()}
        config = model_spec_from_gguf(gguf.metadata, shapes, lambda name: read_floats(gguf, name))
        defaults = generation_config_from_gguf(gguf.metadata)
        kinds = {kind: _GGUF_DTYPES[kind] if kind in FLOATS else kind.name for kind in GGMLType}
        stored = by_size((kinds[tensor.type], tensor.nbytes) for tensor in gguf.tensors.values())
        quantized = _gguf_formats(gguf, config)
        notes: list[str] = []
        paired = pair(gguf, config, Path(mmproj)) if mmproj else _paired_beside(gguf, config, notes)
    return Checkpoint(
        format="gguf",
        folder=file.parent,
        files=gguf.files,
        config=config if paired is None else paired.spec,
        dtype=next(iter(stored)),
        defaults=defaults,
        stored_bytes=stored,
        quantized=quantized,
        tower=None if paired is None else _by_projector(paired),
        notes=tuple(notes),
    )


def _by_projector(paired: "PairedModel") -> StoredTower:
    return StoredTower((paired.file,), paired.nbytes, paired.described, paired.tower, paired.quantized)


def _paired_beside(gguf: GGUFFile, config: ModelSpec, notes: list[str]) -> "PairedModel | None":
    """The model with the first suitable projector file beside it; adds why others are unsuitable to ``notes``."""
    from .gguf.mmproj import beside, pair

    for file in beside(gguf.path):
        try:
            return pair(gguf, config, file)
        except CheckpointError as error:
            notes.append(str(error))
    return None


def _open_ct2(file: Path) -> Checkpoint:
    found = read_ct2(file)
    config = whisper_config(found)
    stored = by_size((variable.dtype, variable.nbytes) for variable, _, _ in ct2_tensors(found))
    if not stored:
        raise CheckpointError(f"Cannot load {file}: it holds no weights.")
    return Checkpoint(
        format="ct2",
        folder=file.parent,
        files=(file,),
        config=config,
        dtype=next(iter(stored)),
        defaults=GenerationConfig(config.eos_token_ids),
        stored_bytes=stored,
    )


def _gguf_formats(gguf: GGUFFile, spec: ModelSpec) -> QuantizedCheckpoint | None:
    """The block type of every quantised matrix, or of all experts' matrices, by the name of its projection."""
    parts: dict[str, Format] = {}
    for tensor in gguf.tensors.values():
        if tensor.type in FLOATS or len(tensor.shape) not in (2, 3):
            continue
        part = stored_part(tensor.name, spec)
        if part.by_rows:
            parts |= {name.removesuffix(".weight"): GGUFFormat(tensor.type.name) for name in part.names}
    return QuantizedCheckpoint("gguf", parts=parts) if parts else None


def _open_dummy(path: Path, model_impl: ModelImpl) -> Checkpoint:
    if path.is_dir() and not any(path.glob("*.safetensors")) and (ct2 := _ct2_in(path)) is not None:
        found = _open_ct2(ct2)
        return Checkpoint("dummy", found.folder, (), found.config, "bfloat16", found.defaults)
    if path.is_dir() and (path / "config.json").is_file():
        read_here, generation = _read_configs(path)
        config, _ = with_companions(read_here)
        named, read = config.get("dtype", config.get("torch_dtype")), read_config(config, generation, model_impl)
        return Checkpoint(
            format="dummy",
            folder=path,
            files=(),
            config=read,
            dtype=named if isinstance(named, str) and named in DTYPES.values() else "bfloat16",
            defaults=generation_config_from_hf(config, generation, read),
        )
    gguf = _open_gguf(path if path.is_file() else _gguf_in(path))
    return Checkpoint("dummy", gguf.folder, (), gguf.config, "bfloat16", gguf.defaults)


def _read_configs(folder: Path) -> tuple[dict[str, object], dict[str, object]]:
    """config.json, or what Mistral's own files have in its place, and generation_config.json; the latter is empty if
    missing."""
    if (folder / "config.json").is_file():
        config = read_json(folder / "config.json")
    elif (folder / MISTRAL_PARAMS).is_file():
        from ..model_config.hf.mistral_params import config_from_params  # late: few models have it

        config = config_from_params(read_json(folder / MISTRAL_PARAMS))
    else:
        raise CheckpointError(f"Cannot load {folder}: config.json is missing.")
    generation = folder / "generation_config.json"
    return config, read_json(generation) if generation.is_file() else {}


def _ct2_in(folder: Path) -> Path | None:
    """The only model.bin in or below the folder."""
    if (folder / _CT2_FILE).is_file():
        return folder / _CT2_FILE
    files = sorted(folder.rglob(_CT2_FILE))
    return files[0] if len(files) == 1 else None


def _gguf_in(folder: Path) -> Path:
    files = _models_among(folder.glob("*.gguf")) or _models_among(folder.rglob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if not files:
        what = "*.safetensors or pytorch_model.bin"
        if not (folder / "config.json").is_file():
            what = f"config.json with {what}"
        raise CheckpointError(
            f"Cannot load {folder}: expected {what}, or one .gguf file, or CTranslate2's {_CT2_FILE}, and found none."
        )
    names = ", ".join(str(file.relative_to(folder)) for file in files[:4])
    more = ", …" if len(files) > 4 else ""
    raise CheckpointError(
        f"Cannot load {folder}: it holds {len(files)} .gguf files ({names}{more}); name the one to serve."
    )


def _models_among(files: Iterable[Path]) -> list[Path]:
    models = {str(file) for file in files if not is_mmproj(file.name)}
    return [Path(name) for name in first_parts(models)]


def sizes_of(tensors: Iterable[StoredTensor]) -> dict[str, int]:
    """Bytes by type, most first; tied tensors, stored once, count once."""
    apart = {(tensor.file, tensor.offset, tensor.dtype): tensor.nbytes for tensor in tensors}
    return by_size((dtype, nbytes) for (_, _, dtype), nbytes in apart.items())


def by_size(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Bytes by type, from (type, bytes) of each tensor; most first."""
    sizes: Counter[str] = Counter()
    for name, size in pairs:
        sizes[name] += size
    return dict(sizes.most_common())
