"""What renderers are called."""

from typing import Literal

RendererName = Literal["auto", "template", "mistral", "deepseek_v32", "harmony"]
