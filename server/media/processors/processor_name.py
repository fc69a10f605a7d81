"""Which of transformers' processors a model has, as its files say it."""

from typing import Final

from .model_files import ModelFiles, Source

FILES: Final = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def processor_name(source: Source) -> str | None:
    """None if no file names one."""
    said = (ModelFiles(source).read(file).get("processor_class") for file in FILES)
    return next((name for name in said if isinstance(name, str)), None)
