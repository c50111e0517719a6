"""Renders a chat template as transformers' apply_chat_template does, without it.

    template = JinjaTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    text, blocks = template.render(messages, tools)   (begin, end) of each {% generation %} block

The sandbox, filters and globals are the same, but `strftime_now` always gives the 26th of July
2024, the date that Llama's templates fall back to. A date of today would give a set other bytes
when it is continued tomorrow.
"""

import datetime
import functools
import json
from collections.abc import Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from tokenmill.chat.conversations import CannotMask

Rendered = tuple[str, list[tuple[int, int]]]  # a text, and (begin, end) of its generation blocks
NOW = datetime.datetime(2024, 7, 26)
FAILS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    IndexError,
    ArithmeticError,
    RecursionError,
)


class _Namespace(jinja2.utils.Namespace):
    """Without names that begin with "_", which reach into Python, as in transformers."""

    def __init__(*args: Any, **kwargs: Any):
        namespace, *values = args
        jinja2.utils.Namespace.__init__(namespace)
        for name, value in dict(*values, **kwargs).items():
            namespace[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise jinja2.TemplateError(f"a namespace cannot have the name {name!r}")
        jinja2.utils.Namespace.__setitem__(self, name, value)


class _Blocks(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, whatever white space its tags take away."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        self.environment.has_blocks = True  # type: ignore[attr-defined]
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_track"), [], [], body).set_lineno(line)

    def _track(self, caller: Any) -> str:
        text: str = caller()
        environment: Any = self.environment
        environment.blocks.append((sum(map(len, environment.rendered)), text))
        return text


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


class JinjaTemplate:
    """A chat template; `has_blocks`: whether it marks what is in the loss.

    Raises ValueError if it is not valid Jinja.
    """

    def __init__(self, source: str, variables: dict[str, str]):
        environment: Any = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Blocks, jinja2.ext.loopcontrols]
        )
        environment.has_blocks = False
        environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
        environment.globals.update(
            raise_exception=_raise, strftime_now=NOW.strftime, namespace=_Namespace
        )
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template is not valid Jinja: line {error.lineno}: {error.message}"
            ) from error
        self.variables = variables
        self.has_blocks = environment.has_blocks
        self._environment = environment

    def render(
        self, messages: Sequence[Any], tools: list[Any] | None = None, prompt: bool = False
    ) -> Rendered:
        """The text of a conversation, perhaps with the prompt for an answer, and its blocks.

        Raises CannotMask with the template's reason.
        """
        rendered: list[str] = []
        begun_blocks: list[tuple[int, str]] = []
        self._environment.rendered = rendered
        self._environment.blocks = begun_blocks
        pieces = self._template.generate(
            self.variables,
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=prompt,
        )
        try:
            for piece in pieces:
                rendered.append(piece)
        except FAILS as error:
            reason = str(error) or type(error).__name__
            raise CannotMask(f"the template rejects it: {reason}"[:160]) from error
        text = "".join(rendered)
        blocks = []
        for begin, block in begun_blocks:
            if not text.startswith(block, begin):
                raise CannotMask(
                    "a generation block is within a macro, a filter or a set, so its place cannot "
                    "be told"
                )
            blocks.append((begin, begin + len(block)))
        return text, blocks
