"""transformers in float32 on the same weights, de-quantised where they are quantised."""

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from stentor.engine.loading.checkpoint import Checkpoint


class ReferenceError(Exception):
    """transformers cannot read the model; the message is one line."""


class Reference:
    """A model, and where its tokenizer has one. Raises :class:`ReferenceError`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._folder = checkpoint.folder
        self._source: dict[str, str] = {}
        if checkpoint.format == "gguf":
            self._folder, self._source = checkpoint.files[0].parent, {"gguf_file": checkpoint.files[0].name}
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        self._model = self._load(load, dtype=torch.float32).eval()

    def tokenize(self, text: str) -> list[int]:
        """Without special tokens. Raises :class:`ReferenceError`."""
        tokenizer = self._load(transformers.AutoTokenizer.from_pretrained)
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _load(self, load: Callable[..., Any], **options: object) -> Any:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # bars that no switch of transformers turns off
                return load(self._folder, **self._source, **options)
        except (OSError, ValueError, ImportError, KeyError) as error:
            why = " ".join(str(error).split())
            raise ReferenceError(f"transformers cannot load {self._folder}: {why}") from error

    def save(self, folder: Path) -> None:
        """Writes the float32 weights as safetensors beside a config.json, for our own loader to read."""
        # not by save_pretrained, which refuses what was read from a GGUF file
        config = self._model.config.to_dict() | {"architectures": [type(self._model).__name__]}
        config.pop("quantization_config", None)
        (folder / "config.json").write_text(json.dumps(config, default=str))
        tensors = {name: tensor.contiguous() for name, tensor in self._model.state_dict().items()}
        if config.get("tie_word_embeddings"):
            tensors.pop("lm_head.weight", None)
        save_file(tensors, folder / "model.safetensors")

    @torch.inference_mode()
    def logprobs(self, window: Sequence[int]) -> torch.Tensor:
        """[positions, vocabulary] float32: of what follows each token but the last."""
        logits = self._model(torch.tensor([list(window)])).logits[0, :-1]
        return torch.log_softmax(logits.float(), dim=-1)
