"""The text that stands for pictures and videos of SmolVLM, whose own processor needs a package to spell numbers.

A video is its frames as pictures that are not cut up, each behind its time.
"""

from typing import Any, Final

from transformers import Idefics3Processor

_UNITS: Final = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


class SmolVLMProcessor(Idefics3Processor):
    def __init__(
        self, image_processor: Any, tokenizer: Any = None, image_seq_len: int = 169, chat_template: str | None = None
    ) -> None:
        super().__init__(image_processor, tokenizer, image_seq_len, chat_template)
        self.video_token = getattr(tokenizer, "video_token", "<video>")

    def replace_video_token(self, video_inputs: Any, video_idx: int, **_: Any) -> str:
        metadata = video_inputs["video_metadata"][video_idx]
        frames = len(metadata.timestamps)
        hours, minutes, seconds = _clock(metadata.duration)
        text = f"You are provided the following series of {spelled(frames)} frames from a "
        text += f"{hours}:{minutes:02d}:{seconds:02d} [H:MM:SS] video.\n"
        ends = self.fake_image_token
        picture = f"{ends}{self.global_image_tag}{self.image_token * self.image_seq_len}{ends}"
        for time in metadata.timestamps:
            text += f"\nFrame from {int(time // 60):02d}:{int(time % 60):02d}:{picture}"
        return text + "\n\n"


def _clock(seconds: float) -> tuple[int, int, int]:
    minutes, left = divmod(int(seconds), 60)
    return *divmod(minutes, 60), left


def spelled(number: int) -> str:
    """In words, below 1,000."""
    if number < len(_UNITS):
        return _UNITS[number]
    if number < 100:
        tens, units = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_UNITS[units]}" if units else "")
    hundreds, left = divmod(number, 100)
    return f"{_UNITS[hundreds]} hundred" + (f" and {spelled(left)}" if left else "")
