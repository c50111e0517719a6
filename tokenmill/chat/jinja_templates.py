"""Renders chat templates as transformers' apply_chat_template does, without it: the same sandbox, filters and globals.

    template = JinjaTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    text, blocks = template.render(messages, tools)      blocks: (begin, end) of each {% generation %} block

One thing is different: `strftime_now` always gives the 26th of July 2024, the date that Llama's templates fall back to.
A date of today would give a set other bytes when it is continued tomorrow.
"""

import datetime
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
FAILS = (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError)


class _Namespace(jinja2.utils.Namespace):
    """Without names that begin with "_", which reach into Python, as in transformers."""

    def __init__(*args: Any, **kwargs: Any):
        jinja2.utils.Namespace.__init__(args[0])
        for name, value in dict(*args[1:], **kwargs).items():
            args[0][name] = value

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


class JinjaTemplate:
    """A chat template; `has_blocks`: whether it marks what is learned. Raises ValueError if it is not valid Jinja."""

    def __init__(self, source: str, variables: dict[str, str]):
        how: Any = {"trim_blocks": True, "lstrip_blocks": True, "extensions": [_Blocks, jinja2.ext.loopcontrols]}
        environment: Any = jinja2.sandbox.ImmutableSandboxedEnvironment(**how)
        environment.has_blocks, environment.rendered, environment.blocks = False, [], []
        environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: (
            json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        )
        environment.globals.update(raise_exception=_raise, strftime_now=NOW.strftime, namespace=_Namespace)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template is not valid Jinja: line {error.lineno}: {error.message}") from error
        self.variables, self.has_blocks, self._environment = variables, environment.has_blocks, environment

    def render(self, messages: Sequence[Any], tools: list[Any] | None = None, prompt: bool = False) -> Rendered:
        """The text of a conversation, with the prompt for an answer if that is asked for, and its blocks.

        Raises CannotMask with the template's reason.
        """
        environment = self._environment
        environment.rendered, environment.blocks = [], []
        given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}
        try:
            for piece in self._template.generate(self.variables, **given):
                environment.rendered.append(piece)
        except (*FAILS, RecursionError) as error:
            raise CannotMask(f"the template rejects it: {str(error) or type(error).__name__}"[:160]) from error
        text = "".join(environment.rendered)
        blocks = [(begin, begin + len(block)) for begin, block in environment.blocks]
        if any(text[begin:end] != block for (begin, end), (_, block) in zip(blocks, environment.blocks, strict=True)):
            raise CannotMask("a generation block is within a macro, a filter or a set, so its place cannot be told")
        return text, blocks


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
