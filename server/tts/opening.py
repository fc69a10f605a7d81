"""From the configuration to a model that speaks; nothing is started yet, and nothing heavy imported."""

import os
from pathlib import Path

from stentor.engine.tts.client import SpeechClient
from stentor.engine.tts.voices import read_voices
from stentor.protocols.ipc.speech import StartSpeech

from ..config.config import Config
from .model import SpeechModel


def open_speech(config: Config) -> SpeechModel:
    """Of ``config.speech``, which must be located. Raises :class:`~stentor.engine.loading.errors.CheckpointError`."""
    voices = read_voices(Path(config.speech.path))
    logs = config.engine.worker
    threads = config.speech.threads or _share(len(os.sched_getaffinity(0)))
    start = StartSpeech(voices.backend, voices.places, threads, logs.log_level, logs.log_format)
    return SpeechModel(config.speech.served_names, voices, SpeechClient(start))


def _share(cores: int) -> int:
    """A sentence takes a fraction of the time that it lasts, and the chat model wants the cores at the same time."""
    return max(1, min(4, cores // 2))
