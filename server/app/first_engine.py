"""The first step of a start: the models' files, and engines that load them."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from stentor.engine.channel import ChannelError
from stentor.engine.channel.region import require_linux
from stentor.engine.loading.download.hub import resolve_model, resolve_tokenizer
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import ModelKind, kind_of
from stentor.engine.processes import launch
from stentor.engine.processes.exception_groups import one_line
from stentor.engine.processes.fork_server_owner import ForkServer
from stentor.engine.sharing.lease import LeaseError, create_lease
from stentor.engine.sharing.weight_cache import create_weight_file
from stentor.protocols.ipc.config import EngineConfig

from ..config.config import Config
from ..config.model_registry import ARTICLES, OPTIONS_OF, ModelRole
from ..config.models import SpeechConfig
from ..http.listening import StartError
from .fetch_display import FetchDisplay


def fetch(config: Config) -> Config:
    """The config with all models, and a tokenizer of the chat model's own, on disk. Raises CheckpointError."""
    if not sys.stderr.isatty():  # Hugging Face's library shows its own bars
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    named = config.model
    with FetchDisplay() as display:
        model = resolve_model(named.name, revision=named.revision, progress=display.show)
        tokenizer = resolve_tokenizer(named.tokenizer, progress=display.show) if named.tokenizer else None
        asr, tts, pooling = config.transcription.model, config.speech.model, config.embedding.model
        transcription = resolve_model(asr, progress=display.show) if asr else None
        speech = resolve_model(tts, progress=display.show) if tts else None
        codec = _codec_of(config.speech, speech) if speech else None
        codec_path = resolve_model(codec, progress=display.show) if codec else None
        embedding = resolve_model(pooling, progress=display.show) if pooling else None
        drafting = config.engine.worker.speculative
        draft = resolve_model(drafting.model, progress=display.show) if drafting and drafting.model else None
    if not pooling and kind_of(model) == "embedding":
        config = config.pooling_main()
    else:
        check_kind("MODEL", named.name, model, "chat")
    if asr and transcription:
        check_transcribes(asr, transcription)
    if tts and speech and codec is None:
        check_kind("--speech-model", tts, speech, "speech")
    if pooling and embedding and kind_of(embedding) != "chat":  # a chat model can make vectors, too
        check_kind("--embedding-model", pooling, embedding, "embedding")
    if drafting and draft and drafting.method == "draft_model":
        check_kind("--speculative-config", drafting.model, draft, "chat")
    located = config.located(model, tokenizer, transcription, speech, embedding, draft, codec_path)
    if located.memory_left <= 0:
        raise CheckpointError(
            "--speech-memory-share and the shares of the other models are 1 or more together; the chat model needs "
            "some memory, too"
        )
    return located


def _codec_of(config: SpeechConfig, path: Path) -> str | None:
    """The name of the codec of the speech model in ``path``; None if it is no speech language model."""
    if kind_of(path) == "speech":
        if config.codec is not None:
            raise CheckpointError(
                f"--speech-codec is for language models that speak, and {config.model} is a voice itself"
            )
        return None
    from ..tts.opening import codec_of  # late: only such a model's tokenizer is read here

    found = codec_of(path)
    return None if found is None else config.codec or found


def check_transcribes(name: str, path: Path) -> None:
    """Raises CheckpointError where ``--transcription-model`` names, as ``name``, a model that does not transcribe; some
    chat models do, too."""
    from .media import transcribes  # late: only a second chat model needs it

    if not transcribes(path):
        check_kind("--transcription-model", name, path, "transcription")


def check_kind(option: str, name: str, path: Path, wanted: ModelKind) -> None:
    """Raises CheckpointError where ``option`` names, as ``name``, a model of another kind."""
    found = kind_of(path)
    if found != wanted:
        raise CheckpointError(
            f"{option}: {name} is {ARTICLES[found]}, and {ARTICLES[wanted]} is expected; "
            f"name it as {OPTIONS_OF[found]} instead"
        )


@contextlib.contextmanager
def first_engines(
    configs: Mapping[ModelRole, EngineConfig], fork_server: ForkServer | None = None
) -> Iterator[dict[ModelRole, list[launch.EngineProcess]]]:
    """Launches all engines, from a thread that must outlive them. Later engines reuse prepared weights (a file for each
    worker), the fork server of all workers, and the device lease. The caller owns ``fork_server``, which already runs.

    Raises :class:`..http.listening.StartError`.
    """
    engines: dict[ModelRole, list[launch.EngineProcess]] = {kind: [] for kind in configs}
    with contextlib.ExitStack() as held:
        try:
            require_linux()
            fork_servers = {} if fork_server is None else {fork_server.module: fork_server}
            lease = None
            if len(configs) > 1:
                lease = create_lease([config.worker.lease_weight for config in configs.values()])
                held.callback(os.close, lease)
            for kind, config in configs.items():
                if config.worker_module not in fork_servers:
                    fork_servers[config.worker_module] = ForkServer(config.worker_module)
                    held.callback(fork_servers[config.worker_module].close)
                for replica in config.replicas:
                    weights = [create_weight_file() for _ in range(config.worker.group_size)]
                    for file in weights:
                        held.callback(os.close, file)
                    # models share the device of the first engine; those after it have devices, or cores, of their own
                    shared = None if replica.worker.replica else lease
                    engine = launch.launch_engine(replica, weights, fork_servers[config.worker_module], shared)
                    held.callback(engine.close)
                    engines[kind].append(engine)
        except (ChannelError, LeaseError, OSError) as error:
            raise StartError(f"cannot start the engine process: {one_line(error)}") from error
        yield engines
