# ruff: noqa: E501
"""Chat templates written from the formats that model families publish: how each renders the calls of a message."""

from typing import Final

_SKELETON: Final = (
    "{%- for message in messages -%}<|{{ message.role }}|>{{ message.content or '' }}"
    "{%- if message.tool_calls -%}CALLS{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
_EACH: Final = "{%- for call in message.tool_calls -%}{%- set f = call.function -%}"
_END: Final = "{%- endfor -%}"
_PARAMETERS: Final = (
    "{%- for key, value in f.arguments.items() -%}{%- set text = value if value is string else value | tojson -%}"
)


def _each(body: str) -> str:
    return _EACH + body + _END


def _listed(body: str) -> str:
    return _each(body + "{%- if not loop.last -%}{{ ', ' }}{%- endif -%}")


def _object(name: str = "name", arguments: str = "arguments") -> str:
    return f"{{{{ '{{\"{name}\": \"' ~ f.name ~ '\", \"{arguments}\": ' ~ (f.arguments | tojson) ~ '}}' }}}}"


def _markup(open: str, key: str, between: str, close: str, end: str) -> str:
    """Call, each parameter and the end of the call; ``open``, ``key`` and so on are texts."""
    text = "{{ " + repr(open) + " }}"
    text = text.replace("NAME", "' ~ f.name ~ '")
    one = "{{ " + repr(key + "KEY" + between + "VALUE" + close) + " }}"
    one = one.replace("KEY", "' ~ key ~ '").replace("VALUE", "' ~ text ~ '")
    return text + _PARAMETERS + one + _END + "{{ " + repr(end) + " }}"


_DSML: Final = (
    "{{ '<｜DSML｜invoke name=\"' ~ f.name ~ '\">\n' }}"
    "{%- for key, value in f.arguments.items() -%}{{ '<｜DSML｜parameter name=\"' ~ key ~ '\" string=\"' ~ ('true' if value is string else 'false')"
    " ~ '\">' ~ (value if value is string else value | tojson) ~ '</｜DSML｜parameter>\n' }}{%- endfor -%}{{ '</｜DSML｜invoke>\n' }}"
)
_QWEN: Final = _markup("<function=NAME>\n", "<parameter=", ">\n", "\n</parameter>\n", "</function>\n")
_GLM_LINES: Final = _markup(
    "\n<tool_call>NAME\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>"
)
_GLM: Final = _markup("<tool_call>NAME", "<arg_key>", "</arg_key><arg_value>", "</arg_value>", "</tool_call>")


def _hunyuan(suffix: str) -> str:
    call = _markup(
        "<tool_callS>NAME<tool_sepS>\n",
        "<arg_keyS>",
        "</arg_keyS>\n<arg_valueS>",
        "</arg_valueS>\n",
        "</tool_callS>\n",
    )
    return ("{{ '<tool_callsS>\n' }}" + _each(call) + "{{ '</tool_callsS>' }}").replace("S>", f"{suffix}>")


_HUNYUAN_V4: Final = _markup("<tool_call>NAME", "<arg_key>", "</arg_key><arg_value>", "</arg_value>", "</tool_call>")
_TYPE: Final = (
    "{%- set type = 'string' if value is string else 'boolean' if value is boolean else 'number' if value is number"
    " else 'object' if value is mapping else 'array' -%}"
)
_XTML: Final = (
    "{{ '<|open|>call tool=\"' ~ f.name ~ '\" index=\"' ~ loop.index ~ '\"<|sep|>' }}"
    + _PARAMETERS
    + _TYPE
    + "{{ '<|open|>argument key=\"' ~ key ~ '\" type=\"' ~ type ~ '\"<|sep|>' ~ text ~ '<|close|>argument<|sep|>' }}"
    + _END
    + "{{ '<|close|>call<|sep|>' }}"
)
_PLAMO: Final = (
    "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{{ f.name }}<|plamo:end_tool_name:plamo|>"
    "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{{ f.arguments | tojson }}"
    "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
)
_HORIZON: Final = _markup(
    "<ifm|tool_call>NAME",
    "<ifm|arg_key>",
    "</ifm|arg_key><ifm|arg_type>any</ifm|arg_type><ifm|arg_value>",
    "</ifm|arg_value>",
    "</ifm|tool_call>",
)
_TAGGED: Final = "{{ '\n<tool_call>\n' }}" + _object() + "{{ '\n</tool_call>' }}"
_PYTHON: Final = (
    "{{ f.name ~ '(' }}{%- for key, value in f.arguments.items() -%}{{ key ~ '=' }}"
    "{%- if value is boolean -%}{{ 'True' if value else 'False' }}{%- else -%}{{ value | tojson }}{%- endif -%}"
    "{%- if not loop.last -%}{{ ', ' }}{%- endif -%}{%- endfor -%}{{ ')' }}"
)


def _gemma(quote: str, begin: str, end: str) -> str:
    value = (
        "{%- macro write(value) -%}{%- if value is string -%}{{ Q ~ value ~ Q }}"
        "{%- elif value is boolean -%}{{ 'true' if value else 'false' }}"
        "{%- elif value is mapping -%}{{ '{' }}{%- for k, v in value.items() -%}{{ k ~ ':' }}{{ write(v) }}"
        "{%- if not loop.last -%}{{ ',' }}{%- endif -%}{%- endfor -%}{{ '}' }}"
        "{%- elif value is iterable -%}{{ '[' }}{%- for v in value -%}{{ write(v) }}"
        "{%- if not loop.last -%}{{ ',' }}{%- endif -%}{%- endfor -%}{{ ']' }}"
        "{%- else -%}{{ value }}{%- endif -%}{%- endmacro -%}"
    ).replace("Q", repr(quote))
    return value + _each(f"{{{{ '{begin}call:' ~ f.name }}}}{{{{ write(f.arguments) }}}}{{{{ '{end}' }}}}")


def _minimax_m3() -> str:
    element = "{{ NS ~ '<' ~ k ~ '>' }}{{ write(v) }}{{ NS ~ '</' ~ k ~ '>' }}"
    value = (
        "{%- macro write(value) -%}{%- if value is mapping -%}"
        "{%- for k, v in value.items() if v is not none -%}ELEMENT{%- endfor -%}"
        "{%- elif value is iterable and value is not string -%}"
        "{%- for v in value -%}{%- set k = 'item' -%}ELEMENT{%- endfor -%}"
        "{%- elif value is boolean -%}{{ value | tojson }}{%- elif value is not none -%}{{ value }}{%- endif -%}{%- endmacro -%}"
    ).replace("ELEMENT", element)
    call = "{{ NS ~ '<invoke name=\"' ~ f.name ~ '\">' }}{{ write(f.arguments) }}{{ NS ~ '</invoke>\n' }}"
    whole = value + "{{ NS ~ '<tool_call>\n' }}" + _each(call) + "{{ NS ~ '</tool_call>' }}"
    return whole.replace("NS", repr("]<]minimax[>["))


CALLS: Final = {
    "hermes": _each(_TAGGED),
    "longcat": _each("{{ '<longcat_tool_call>' }}" + _object() + "{{ '</longcat_tool_call>\n' }}"),
    "ernie45": "{{ '\n<response>\n</response>\n' }}" + _each(_TAGGED),
    "plain": _each(_TAGGED),
    "qwen3_coder": _each("{{ '\n<tool_call>\n' }}" + _QWEN + "{{ '</tool_call>' }}"),
    "mimo": _each(_markup("<tool_call><function=NAME>", "<parameter=", ">", "</parameter>", "</function></tool_call>")),
    "seed_oss": _each("{{ '\n<seed:tool_call>\n' }}" + _QWEN + "{{ '</seed:tool_call>' }}"),
    "minicpm5": _each(_markup('<function name="NAME">', '<param name="', '">', "</param>", "</function>\n")),
    "minimax_m2": "{{ '\n<minimax:tool_call>\n' }}"
    + _each(_markup('<invoke name="NAME">\n', '<parameter name="', '">', "</parameter>\n", "</invoke>\n"))
    + "{{ '</minimax:tool_call>' }}",
    "dots": "{{ '\n<dots_function_call>\n' }}"
    + _each(_markup('<invoke name="NAME">\n', '<parameter name="', '">', "</parameter>\n", "</invoke>\n"))
    + "{{ '</dots_function_call>' }}",
    "minimax_m3": _minimax_m3(),
    "minimax": "{{ '\n<tool_calls>\n' }}" + _each(_object() + "{{ '\n' }}") + "{{ '</tool_calls>' }}",
    "step3": "{{ '<｜tool_calls_begin｜>' }}"
    + _each(
        "{{ '<｜tool_call_begin｜>function<｜tool_sep｜>' }}"
        + _markup(
            '<steptml:invoke name="NAME">\n',
            '<steptml:parameter name="',
            '">',
            "</steptml:parameter>\n",
            "</steptml:invoke>",
        )
        + "{{ '<｜tool_call_end｜>' }}"
    )
    + "{{ '<｜tool_calls_end｜>' }}",
    "glm45": _each(_GLM_LINES),
    "glm47": _each(_GLM),
    "hy_v3": _hunyuan(""),
    "hy_v4": "<tool_calls>" + _each(_HUNYUAN_V4) + "</tool_calls>",
    "kimi_k3": "<|open|>tools<|sep|>" + _each(_XTML) + "<|close|>tools<|sep|><|close|>message<|sep|>",
    "k2_horizon": "<ifm|tool_calls>" + _each(_HORIZON) + "</ifm|tool_calls>",
    "k2_horizon_json": "<ifm|tool_calls>"
    + _each("<ifm|tool_call>" + _object() + "</ifm|tool_call>")
    + "</ifm|tool_calls>",
    "plamo3": "<|plamo:begin_tool_requests:plamo|>" + _each(_PLAMO) + "<|plamo:end_tool_requests:plamo|>",
    "hy_v3_opensource": _hunyuan(":opensource"),
    "deepseek_v3": "{{ '<｜tool▁calls▁begin｜>' }}"
    + _each(
        "{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' ~ f.name ~ '\n```json\n' ~ (f.arguments | tojson) ~ '\n```<｜tool▁call▁end｜>\n' }}"
    )
    + "{{ '<｜tool▁calls▁end｜>' }}",
    "deepseek_v31": "{{ '<｜tool▁calls▁begin｜>' }}"
    + _each(
        "{{ '<｜tool▁call▁begin｜>' ~ f.name ~ '<｜tool▁sep｜>' ~ (f.arguments | tojson) ~ '<｜tool▁call▁end｜>' }}"
    )
    + "{{ '<｜tool▁calls▁end｜>' }}",
    "deepseek_v32": "{{ '\n\n<｜DSML｜function_calls>\n' }}" + _each(_DSML) + "{{ '</｜DSML｜function_calls>' }}",
    "deepseek_v4": "{{ '\n\n<｜DSML｜tool_calls>\n' }}" + _each(_DSML) + "{{ '</｜DSML｜tool_calls>' }}",
    "deepseek_v41": "{{ '\n\n<｜DSML｜ calls>\n' }}"
    + _each(_DSML.replace("｜DSML｜", "｜DSML｜ "))
    + "{{ '</｜DSML｜ calls>' }}",
    "kimi_k2": "{{ '<|tool_calls_section_begin|>' }}"
    + _each(
        "{{ '<|tool_call_begin|>functions.' ~ f.name ~ ':' ~ loop.index0 ~ '<|tool_call_argument_begin|>' ~ (f.arguments | tojson) ~ '<|tool_call_end|>' }}"
    )
    + "{{ '<|tool_calls_section_end|>' }}",
    "solar_open": "{{ '<|tool_calls|>' }}"
    + _each(
        "{{ '<|tool_call:begin|>' ~ call.id ~ '<|tool_call:name|>' ~ f.name ~ '<|tool_call:args|>' ~ (f.arguments | tojson) ~ '<|tool_call:end|>' }}"
    )
    + "{{ '<|calls|>' }}",
    "functionary_v3.1": _each("{{ '<function=' ~ f.name ~ '>' ~ (f.arguments | tojson) ~ '</function>' }}"),
    "mistral": _each("{{ '[TOOL_CALLS]' ~ f.name ~ '[ARGS]' ~ (f.arguments | tojson) }}"),
    "mistral_array": "{{ '[TOOL_CALLS] [' }}"
    + _listed(
        '{{ \'{"name": "\' ~ f.name ~ \'", "arguments": \' ~ (f.arguments | tojson) ~ \', "id": "\' ~ call.id ~ \'"}\' }}'
    )
    + "{{ ']' }}",
    "gigachat3": _each(
        "{{ '<|message_sep|>\n\nfunction call<|role_sep|>\n' }}" + _object() + "{{ '<|message_sep|>' }}"
    ),
    "gigachat31": _each("{{ '<|function_call|>' }}" + _object() + "{{ '<|message_sep|>' }}"),
    "muse": "<atem:function_calls>\n"
    + _each(
        _markup(
            '<atem:invoke name="NAME.NAME">\n',
            '<atem:parameter name="',
            '">',
            "</atem:parameter>\n",
            "</atem:invoke>\n",
        )
    )
    + "</atem:function_calls>",
    "inkling": _each("<|message_model|><|content_invoke_tool_json|>" + _object(arguments="args") + "<|end_message|>"),
    "internlm": _each(
        "{{ '<|action_start|><|plugin|>\n' }}" + _object(arguments="parameters") + "{{ '<|action_end|>\n' }}"
    ),
    "cohere_command3": "{{ '<|START_ACTION|>[\n' }}"
    + _listed(
        '{{ \'{"tool_call_id": "\' ~ loop.index0 ~ \'", "tool_name": "\' ~ f.name ~ \'", "parameters": \' ~ (f.arguments | tojson) ~ \'}\' }}'
    )
    + "{{ '\n]<|END_ACTION|>' }}",
    "apertus": "{{ '<|tools_prefix|>[' }}"
    + _listed("{{ '{\"' ~ f.name ~ '\": ' ~ (f.arguments | tojson) ~ '}' }}")
    + "{{ ']<|tools_suffix|>' }}",
    "nemotron": "{{ '<TOOLCALL>[' }}" + _listed(_object()) + "{{ ']</TOOLCALL>' }}",
    "jamba": "{{ '<tool_calls>[' }}" + _listed(_object()) + "{{ ']</tool_calls>' }}",
    "granite": "{{ '<|tool_call|>[' }}" + _listed(_object()) + "{{ ']' }}",
    "granite-20b-fc": _each("{{ '<function_call> ' }}" + _object() + "{{ '\n' }}"),
    "phi4_mini_json": "{{ 'functools[' }}" + _listed(_object()) + "{{ ']' }}",
    "xlam": "{{ '```json\n[' }}" + _listed(_object()) + "{{ ']\n```' }}",
    "llama3_json": "{{ '<|python_tag|>' }}"
    + _each(_object(arguments="parameters") + "{%- if not loop.last -%}{{ '; ' }}{%- endif -%}"),
    "lfm2": "{{ '<|tool_call_start|>[' }}" + _listed(_PYTHON) + "{{ ']<|tool_call_end|>' }}",
    "llama4_pythonic": "{{ '<|python_start|>[' }}" + _listed(_PYTHON) + "{{ ']<|python_end|>' }}",
    "olmo3": "{{ '\n<function_calls>\n' }}" + _each(_PYTHON + "{{ '\n' }}") + "{{ '</function_calls>' }}",
    "functiongemma": _gemma("<escape>", "<start_function_call>", "<end_function_call>"),
    "gemma4": _gemma('<|"|>', "<|tool_call>", "<tool_call|>"),
}
"""By format, how the calls of a message are written behind its text."""
BARE: Final = {
    "pythonic": "{{ '[' }}" + _listed(_PYTHON) + "{{ ']' }}",
    "llama3_json": _each(_object(arguments="parameters") + "{%- if not loop.last -%}{{ '\n' }}{%- endif -%}"),
    "xlam": "{{ '[' }}" + _listed(_object()) + "{{ ']' }}",
    "plain": _each(_object() + "{{ '\n' }}"),
}
"""Of messages without a text."""


def template(calls: str) -> str:
    """A whole chat template around what writes the calls."""
    return _SKELETON.replace("CALLS", calls)
