"""What a gpt-oss brings besides its weights: a tokenizer built as the real one is, with harmony's special tokens behind
a small byte-level vocabulary, and a chat template that asks of conversations what the published one asks."""

from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

from stentor.server.text.tokenizers.pretokenizers import PRE_TOKENIZERS

VOCAB: Final = 400
SPECIAL: Final = (
    *("<|startoftext|>", "<|endoftext|>", "<|reserved_0|>", "<|reserved_1|>", "<|return|>", "<|constrain|>"),
    *("<|reserved_2|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|reserved_3|>", "<|call|>"),
)
"""In the order of their ids."""
WORDS: Final = " to analysis commentary final assistant user system developer functions json Hm"
TEMPLATE: Final = (
    "{% set last = namespace(name='') %}"
    "<|start|>system<|message|>You are ChatGPT.\nReasoning: {{ reasoning_effort or 'medium' }}\n\n"
    "# Valid channels: analysis, commentary, final.<|end|>"
    "{% set told = messages[0].content if messages[0].role in ('system', 'developer') else '' %}"
    "{% if told or tools %}<|start|>developer<|message|># Instructions\n\n{{ told }}"
    "{% if tools %}\n\n# Tools\n\nnamespace functions {\n{% for tool in tools %}"
    "{{ '// ' + tool.function.description }}\ntype {{ tool.function.name }} = (_: any) => any;\n{% endfor %}}"
    "{% endif %}"
    "<|end|>{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>"
    "{% elif 'tool_calls' in m %}"
    "{% if m.content and m.thinking %}{{ raise_exception('Cannot pass both content and thinking') }}{% endif %}"
    "{% if m.content or m.thinking %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.content or m.thinking }}<|end|>"
    "{% endif %}{% set f = m.tool_calls[0].function %}{% set last.name = f.name %}"
    "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>"
    "{{ f.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""Writes conversations in the form of gpt-oss's published template, with its demands: one call a message, reasoning or
a text in front of it, instructions first, tools with descriptions."""


def harmony_tokenizer() -> Tokenizer:
    """A tokenizer that cuts as o200k_harmony does, with as many tokens as ``VOCAB``."""
    backend = Tokenizer(BPE())
    (pattern,) = PRE_TOKENIZERS["gpt-4o"].patterns
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([WORDS, WORDS.replace(" ", "\n")] * 2, trainer)
    filling = VOCAB - len(SPECIAL) - backend.get_vocab_size()
    backend.add_special_tokens([AddedToken(f"<|filling_{at}|>", special=True) for at in range(filling)])
    backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    assert backend.get_vocab_size(with_added_tokens=True) == VOCAB
    return backend
