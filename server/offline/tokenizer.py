"""The model's tokenizer for programs, with the calls of transformers' tokenizers that programs for vLLM use."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..text.tokenizers.tokenizer import Tokenizer

Render = Callable[[dict[str, Any]], list[int]]
"""Token ids of a conversation; its argument is the body of a request to ``/tokenize``."""


class LoadedTokenizer:
    """Reads and writes token ids as the server does. It may be used from any thread until its model is closed."""

    def __init__(self, tokenizer: Tokenizer, render: Render) -> None:
        self._tokenizer: Final = tokenizer
        self._render: Final = render
        self.chat_template: Final = tokenizer.chat_template
        self.bos_token: Final = tokenizer.bos_token
        self.eos_token: Final = tokenizer.eos_token
        self.bos_token_id: Final = tokenizer.bos_token_id
        self.eos_token_id: Final = tokenizer.eos_token_id
        self.pad_token_id: Final = tokenizer.pad_token_id
        self.unk_token_id: Final = tokenizer.unk_token_id
        self.all_special_ids: Final = sorted(tokenizer.special_ids)

    def __len__(self) -> int:
        """Distinct tokens, added ones included."""
        return self._tokenizer.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Token ids by the tokenizer's own spelling, added tokens included."""
        return self._tokenizer.backend.get_vocab(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, by default with the tokens that begin and end texts of the model."""
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids. Unknown ids add nothing."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._tokenizer.decode(ids, skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        """:meth:`decode` of each."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int | None] | None:
        """Ids of tokens in the tokenizer's own spelling; the unknown token's, or None, where there is no such token."""
        if isinstance(tokens, str):
            return self._id_of(tokens)
        return [self._id_of(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str | None] | None:
        """Tokens in the tokenizer's own spelling; None for unknown ids."""
        if isinstance(ids, int):
            return self._tokenizer.backend.id_to_token(ids)
        return [self._tokenizer.backend.id_to_token(id) for id in ids]

    def _id_of(self, token: str) -> int | None:
        id = self._tokenizer.backend.token_to_id(token)
        return self.unk_token_id if id is None else id

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **template_variables: Any,
    ) -> str | list[int]:
        """The prompt of a conversation as :meth:`.llm.LLM.chat` writes it: token ids, or without ``tokenize`` the text
        of these.

        Raises :class:`.fields.RequestRefused` for a conversation that cannot be written.
        """
        body: dict[str, Any] = {
            "messages": conversation,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        optional = {"tools": tools, "documents": documents, "chat_template": chat_template}
        body |= {name: value for name, value in optional.items() if value is not None}
        if template_variables:
            body["chat_template_kwargs"] = template_variables
        ids = self._render(body)
        return ids if tokenize else self.decode(ids)
