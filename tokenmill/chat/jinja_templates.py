"""Renders chat templates as transformers does, without it: the same sandbox, filters and globals.

    template = JinjaTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    template.render(messages, tools)                      the text
    template.render_with_blocks(messages, tools)          and where its {% generation %} blocks are

One thing is different: `strftime_now` always gives the 26th of July 2024, the date that Llama's templates fall back to.
A date of today would give a set other bytes when it is continued tomorrow.
"""

import datetime
import json
import re
from collections.abc import Sequence
from typing import Any

from tokenmill.extras import naming_the_extra

NOW = datetime.datetime(2024, 7, 26)
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of a message's reasoning; templates read the first


class CannotRender(ValueError):
    """The template rejects a conversation, or fails on it."""


class JinjaTemplate:
    """A chat template. Raises ValueError if it is not valid Jinja."""

    def __init__(self, source: str, variables: dict[str, str]):
        with naming_the_extra("chat"):
            import jinja2
        self._errors: tuple[type[Exception], ...] = (jinja2.exceptions.TemplateError, TypeError, ValueError)
        self._errors += (KeyError, AttributeError, IndexError, ArithmeticError, RecursionError)
        self.variables, self.source = variables, source
        self.has_blocks = GENERATION.search(source) is not None
        self._tracker, environment = _environment()
        try:
            self._template = environment.from_string(source)
        except jinja2.exceptions.TemplateSyntaxError as error:
            raise ValueError(f"the chat template is not valid Jinja: line {error.lineno}: {error.message}") from error

    def render(
        self, messages: Sequence[dict[str, Any]], tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> str:
        """The text of a conversation. Raises CannotRender, with the template's reason."""
        return self.render_with_blocks(messages, tools, add_generation_prompt)[0]

    def render_with_blocks(
        self, messages: Sequence[dict[str, Any]], tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text, and (begin, end) of each of its generation blocks in characters."""
        given: dict[str, Any] = {"messages": list(messages), "tools": tools, "documents": None}
        given |= {"add_generation_prompt": add_generation_prompt, **self.variables}
        rendered: list[str] = []
        self._tracker.begin(rendered)
        try:
            for block in self._template.generate(**given):
                rendered.append(block)
        except self._errors as error:
            raise CannotRender(f"the template rejects it: {str(error) or type(error).__name__}"[:200]) from error
        whole = "".join(rendered)
        if any(whole[begin : begin + len(text)] != text for begin, text in self._tracker.blocks):
            raise CannotRender("a generation block is within a macro, a filter or a set, so its place cannot be told")
        return whole, [(begin, begin + len(text)) for begin, text in self._tracker.blocks]


def with_reasoning(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with their reasoning under the names that templates read."""
    found = []
    for message in messages:
        reasoning = next((message[key] for key in REASONING if message.get(key) is not None), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        found.append(message)
    return found


class _Tracker:
    """Where generation blocks are in the text that is being rendered."""

    def __init__(self) -> None:
        self.begin([])

    def begin(self, rendered: list[str]) -> None:
        self._rendered, self.blocks = rendered, list[tuple[int, str]]()  # where each begins, and its text

    def add(self, text: str) -> None:
        self.blocks.append((sum(map(len, self._rendered)), text))


def _environment() -> tuple[_Tracker, Any]:
    """The environment of transformers' templates, and what follows their generation blocks."""
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    tracker = _Tracker()

    class GenerationBlocks(jinja2.ext.Extension):
        """Knows {% generation %} ... {% endgeneration %}."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_track"), [], [], body).set_lineno(line)

        def _track(self, caller: Any) -> str:
            text: str = caller()
            tracker.add(text)
            return text

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return tracker, environment
