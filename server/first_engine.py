"""What comes before everything else that a server needs: the model's files, and an engine that loads them."""

import contextlib
import os
import sys
from collections.abc import Iterator

from stentor.engine import launch
from stentor.engine.channel import ChannelError
from stentor.engine.channel.region import require_linux
from stentor.engine.groups import one_line
from stentor.engine.loading.hub import resolve_model, resolve_tokenizer
from stentor.engine.nursery_owner import Nursery
from stentor.engine.weight_file import create_weight_file
from stentor.protocols.config import EngineConfig

from .config import Config
from .fetch_display import FetchDisplay
from .listening import StartError


def fetch(config: Config) -> Config:
    """The config with the model, and a tokenizer of its own, on disk. Raises CheckpointError."""
    if not sys.stderr.isatty():  # Hugging Face's library draws bars of its own
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    named = config.model
    with FetchDisplay() as display:
        model = resolve_model(named.name, revision=named.revision, progress=display.show)
        tokenizer = resolve_tokenizer(named.tokenizer, progress=display.show) if named.tokenizer else None
    return config.located(model, tokenizer)


@contextlib.contextmanager
def first_engine(config: EngineConfig) -> Iterator[launch.EngineProcess]:
    """Launched, from a thread that must outlive it; prepared weights and the nursery stay for engines that may follow.

    Raises :class:`.listening.StartError`.
    """
    with contextlib.ExitStack() as held:
        try:
            require_linux()
            weights = create_weight_file()
            held.callback(os.close, weights)
            nursery = Nursery(config.worker_module)
            held.callback(nursery.close)
            engine = launch.launch_engine(config, weights, nursery)
        except (ChannelError, OSError) as error:
            raise StartError(f"cannot start the engine process: {one_line(error)}") from error
        held.callback(engine.close)
        yield engine
