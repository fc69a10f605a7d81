"""Prompts of texts and tokens in turn."""

from collections.abc import Sequence

from stentor.protocols.common.bounds import items_at_most, total_chars_at_most
from stentor.protocols.common.limits import Limits
from stentor.protocols.llama_cpp.request import Piece
from stentor.protocols.openai.completions import Prompt

from ...text.pool import TokenizerPool


async def joined_prompts(
    pool: TokenizerPool, prompts: Sequence[Sequence[Piece]], field: str, limits: Limits
) -> Prompt | list[Prompt]:
    """The prompts of ``field`` as other protocols take them: texts, or else the tokens of all. Only a text that begins
    a prompt gets the tokenizer's special tokens. Raises BadRequest."""
    items_at_most(prompts, limits.max_prompts, field)
    texts = [[piece for piece in prompt if isinstance(piece, str)] for prompt in prompts]
    if all(len(prompt) == len(each) == 1 for prompt, each in zip(prompts, texts, strict=True)):
        found: list[Prompt] = [each[0] for each in texts]
        return found[0] if len(found) == 1 else found
    total_chars_at_most(sum(len(text) for each in texts for text in each), limits.max_prompt_chars, field)
    first = [prompt[0] for prompt in prompts if prompt and isinstance(prompt[0], str)]
    later = [piece for prompt in prompts for piece in prompt[1:] if isinstance(piece, str)]
    begun, others = iter(await pool.encode_batch(first)), iter(await pool.encode_batch(later, False))
    made: list[Prompt] = []
    for prompt in prompts:
        tokens: list[int] = []
        for place, piece in enumerate(prompt):
            tokens += [piece] if isinstance(piece, int) else next(others if place else begun)
        made.append(tokens)
    return made[0] if len(made) == 1 else made
