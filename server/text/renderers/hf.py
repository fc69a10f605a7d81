"""The model's own chat template, or one that the request brings."""

from ..pool import TokenizerPool
from .interface import RenderRequest


class TemplateRenderer:
    """Jinja in a sandbox; see :mod:`..chat_template`."""

    def __init__(self, pool: TokenizerPool) -> None:
        self._pool = pool

    def takes_tools(self, chat_template: str | None) -> bool:
        return self._pool.chat_template.takes_tools(chat_template)

    async def render(self, conversation: RenderRequest) -> list[int]:
        return await self._pool.render_chat(
            conversation.messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            chat_template=conversation.chat_template,
            template_kwargs=conversation.template_kwargs,
            tools=conversation.tools,
            documents=conversation.documents,
            add_special_tokens=conversation.add_special_tokens,
            most_tokens=conversation.most_tokens,
        )
