"""Builds transformers' processor of a model without unneeded parts. Runs in the child.

transformers' own loader (``AutoProcessor``) requires torchvision for every model with videos. The image processors that
use Pillow and numpy do not, so they are loaded here one by one, on every machine: the same picture then gives the same
tensors everywhere.
"""

import inspect
import os
from pathlib import Path
from typing import Any, Final

import transformers as untyped_transformers
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from .model_files import GivenFiles, ModelFiles
from .pictures import FrameProcessor
from .processor_classes import OWN, OWN_IMAGES, ProcessorError

transformers: Any = untyped_transformers

_SETTINGS: Final = "processor_config.json"
_OF_IMAGES: Final = "preprocessor_config.json"


def load(files: ModelFiles, name: str) -> Any:
    """The processor of the class ``name``, with the parts that a model's files describe. Raises
    :class:`.processor_classes.ProcessorError`."""
    kind = OWN.get(name) or getattr(transformers, name, None)
    if kind is None:
        raise ProcessorError(f"transformers {transformers.__version__} has no {name}")
    try:
        source = files.source
        if isinstance(source, Path) and (read := getattr(kind, "of", None)) is not None:
            return read(source)  # by more than its settings
        if isinstance(source, GivenFiles):
            settings = files.read(_SETTINGS)
        else:
            settings, _ = kind.get_processor_dict(os.fspath(source))
        parts: dict[str, Any] = {}
        for part in sorted(kind.get_attributes(), key="video_processor".__eq__):  # it is made of the pictures' one
            if part == "video_processor":
                parts[part] = FrameProcessor(parts["image_processor"])
            elif isinstance(source, GivenFiles):
                parts[part] = _given_part(source, name, part)
            else:
                parts[part] = _part(source, name, part)
        taken = inspect.signature(kind.__init__).parameters.keys() - parts.keys()
        return _unchecked(kind)(**parts, **{name: value for name, value in settings.items() if name in taken})
    except ProcessorError:
        raise
    except Exception as error:  # any error of transformers, for the operator
        raise ProcessorError(f"{name}: {' '.join(str(error).split())[:300]}") from error


def _unchecked(kind: Any) -> Any:
    """The same class without checks of its parts: to check a video processor's, transformers searches classes that need
    torchvision."""
    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})


def _part(folder: Path, name: str, part: str) -> Any:
    path = os.fspath(folder)
    match part:
        case "image_processor" if name in OWN_IMAGES:
            return OWN_IMAGES[name].from_pretrained(path)
        case "image_processor":
            return transformers.AutoImageProcessor.from_pretrained(path, backend="pil", trust_remote_code=False)
        case "tokenizer":
            return transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        case "feature_extractor" if name == "Qwen3ASRProcessor":  # its own needs torch, and makes the same features
            return transformers.WhisperFeatureExtractor.from_pretrained(path)
        case "feature_extractor" | "audio_processor":
            return transformers.AutoFeatureExtractor.from_pretrained(path, trust_remote_code=False)
        case _:
            raise ProcessorError(f"it has a part {part}, which is not known here")


def _given_part(given: GivenFiles, name: str, part: str) -> Any:
    """A tokenizer with only the tokens of media."""
    match part:
        case "image_processor":
            settings = dict(given.files[_OF_IMAGES])
            kind = settings.pop("image_processor_type")
            return (OWN_IMAGES.get(name) or getattr(transformers, kind))(**settings)
        case "feature_extractor":
            settings = dict(given.files[_SETTINGS]["feature_extractor"])
            return getattr(transformers, settings.pop("feature_extractor_type"))(**settings)
        case "tokenizer":
            backend = Backend(WordLevel(given.tokens, unk_token=next(iter(given.tokens))))
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in given.tokens])
            return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, extra_special_tokens=given.names)
        case _:
            raise ProcessorError(f"it has a part {part}, which is not known here")
