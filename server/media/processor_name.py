"""Which of transformers' processors a model has, as its files say it."""

from typing import Final

from .model_files import ModelFiles, Source

FILES: Final = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
NEEDS_TORCH: Final = frozenset({"VoxtralProcessor", "GraniteSpeechProcessor"})
"""All others make do with numpy, in a fifth of the time and of the memory that importing torch takes."""


def processor_name(source: Source) -> str | None:
    """None where no file names one."""
    said = (ModelFiles(source).read(file).get("processor_class") for file in FILES)
    return next((name for name in said if isinstance(name, str)), None)
