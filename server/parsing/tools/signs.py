"""How a chat template betrays the format of its model's calls."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Signs:
    """Texts in a template's source."""

    present: tuple[str, ...]
    absent: tuple[str, ...] = ()

    def fit(self, template_source: str) -> bool:
        """Whether all that must be there are, and none that may not."""
        return all(sign in template_source for sign in self.present) and not any(
            sign in template_source for sign in self.absent
        )
