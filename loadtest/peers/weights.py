"""One model in every form that a peer reads, made from a ``.gguf`` file and kept in the cache.

hf      a Hugging Face folder in bfloat16: what vLLM, transformers and Stentor read
bf16    GGUF, every matrix in bfloat16: the same values, as llama.cpp reads them
q4_0    GGUF, quantised from ``bf16`` by llama.cpp's own llama-quantize
q4_1    likewise; a file whose matrices are Q4_1 is taken as it is
q8_0    likewise

De-quantised values are rounded to bfloat16 once, so that ``hf`` and ``bf16`` hold the same bits.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Literal

from stentor.engine.loading.checkpoint import open_checkpoint

Form = Literal["hf", "bf16", "q4_0", "q4_1", "q8_0"]
Progress = Callable[[str], None]


class WeightsError(Exception):
    """A form cannot be made; the message is one line for the user."""


class Weights:
    """The forms of the model at ``source``, a ``.gguf`` file or a Hugging Face folder, below ``shelf``."""

    def __init__(self, source: Path, shelf: Path, quantizer: Path) -> None:
        self.source = source
        self._quantizer = quantizer
        status = source.stat()
        # changes with the file: its forms are then made anew
        key = hashlib.sha256(f"{source.resolve()} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:12]
        self._shelf = shelf / f"{source.stem}-{key}"

    def form(self, form: Form, progress: Progress = lambda what: None) -> Path:
        """Where ``form`` lies; it is made first where it must be. Raises :class:`WeightsError`."""
        source, quantized = self.source, form.startswith("q")
        if form == "hf" and source.is_dir():
            return source
        if source.suffix != ".gguf":
            raise WeightsError(f"{form} is made from a .gguf file, and {source} is a folder; name a .gguf file")
        if form == "q4_1" and open_checkpoint(source).dtype == "Q4_1":
            return source
        target = self._shelf / ("hf" if form == "hf" else f"{source.stem}-{form}.gguf")
        if target.exists():
            return target
        if quantized and not self._quantizer.is_file():
            raise WeightsError(f"{form} is made by llama.cpp's llama-quantize; run: make peers ARGS=llama.cpp")
        made_from = self.form("bf16", progress) if quantized else source
        progress(f"writing {target.name}")
        self._shelf.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".partial-{target.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
        if quantized:
            _quantize(self._quantizer, made_from, partial, form)
        else:
            (write_hf_folder if form == "hf" else write_bf16_gguf)(made_from, partial)
        partial.rename(target)
        return target


def write_hf_folder(source: Path, target: Path) -> None:
    """Writes config, tokenizer and weights in bfloat16 from the ``.gguf`` file ``source``.

    Raises :class:`WeightsError` for a file that transformers does not read.
    """
    import torch  # late: only making weights needs torch, and transformers takes seconds
    import transformers
    from safetensors.torch import save_file
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from stentor.engine.loading.weights import iterate_weights

    named: dict[str, Any] = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    try:
        config: Any = transformers.AutoConfig.from_pretrained(**named)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**named)
    except (ValueError, KeyError, OSError) as error:
        raise WeightsError(f"transformers cannot read {source}: {' '.join(str(error).split())[:200]}") from error
    checkpoint = open_checkpoint(source)
    weights = {name: tensor.contiguous() for name, tensor in iterate_weights(checkpoint, torch.bfloat16)}
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.tie_word_embeddings = "lm_head.weight" not in weights
    if hasattr(config, "attention_bias"):  # no key of the file says so
        config.attention_bias = any(name.endswith("q_proj.bias") for name in weights)
    config.dtype = torch.bfloat16
    _check_names(source, config, weights.keys())
    target.mkdir()
    config.save_pretrained(target)
    tokenizer.save_pretrained(target)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def _check_names(source: Path, config: Any, stored: Set[str]) -> None:
    """transformers passes over weights that its model has no place for: another model would then be measured."""
    import torch
    import transformers

    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config)
    expected = {name for name, _ in model.named_parameters()}
    if odd := sorted(expected ^ stored):
        where = "transformers' model lacks" if odd[0] in stored else "the file lacks"
        raise WeightsError(f"{source} is not the model that transformers makes of it: {where} {odd[0]}")


def write_bf16_gguf(source: Path, target: Path) -> None:
    """Copies a ``.gguf`` file with every matrix in bfloat16; vectors and metadata stay as they are."""
    import gguf  # late: a development dependency

    bf16 = gguf.GGMLQuantizationType.BF16
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    if architecture is None:
        raise WeightsError(f"{source} does not say which architecture it is; expected general.architecture")
    writer = gguf.GGUFWriter(target, architecture.contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(
            field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        )
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        if len(tensor.shape) < 2:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, bf16), raw_dtype=bf16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _quantize(quantizer: Path, source: Path, target: Path, form: Form) -> None:
    done = subprocess.run(
        [str(quantizer), str(source), str(target), form.upper()], capture_output=True, text=True, check=False
    )
    if done.returncode or not target.is_file():
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()] or ["it said nothing"]
        raise WeightsError(f"llama-quantize ended with status {done.returncode}: {lines[-1][:200]}")
