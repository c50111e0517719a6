"""Finds the chat template that --chat names, and renders it as transformers' apply_chat_template does, without it.

    find_chat_rule("chatml", "all")                            one of ours
    find_chat_rule("qwen/tokenizer_config.json", "all")        a model's, with its bos_token and eos_token
    template = JinjaTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    text, blocks = template.render(messages, tools)      blocks: (begin, end) of each {% generation %} block

The sandbox, filters and globals are the same, but `strftime_now` always gives the 26th of July 2024, the date that
Llama's templates fall back to. A date of today would give a set other bytes when it is continued tomorrow.
"""

import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from tokenmill.chat.conversations import CannotMask
from tokenmill.store.files import read_bounded
from tokenmill.tokenize.chat_rule import NAMES, ChatRule, LossRule
from tokenmill.tokenize.huggingface import HuggingFace, added_token
from tokenmill.tokenize.tokenizer import Tokenizer

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
)


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
        how: Any = {
            "trim_blocks": True,
            "lstrip_blocks": True,
            "extensions": [_Blocks, jinja2.ext.loopcontrols],
        }
        environment: Any = jinja2.sandbox.ImmutableSandboxedEnvironment(**how)
        environment.has_blocks, environment.rendered, environment.blocks = False, [], []
        environment.filters["tojson"] = (
            lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
                x,
                ensure_ascii=ensure_ascii,
                indent=indent,
                separators=separators,
                sort_keys=sort_keys,
            )
        )
        environment.globals.update(
            raise_exception=_raise, strftime_now=NOW.strftime, namespace=_Namespace
        )
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template is not valid Jinja: line {error.lineno}: {error.message}"
            ) from error
        self.variables, self.has_blocks, self._environment = (
            variables,
            environment.has_blocks,
            environment,
        )

    def render(
        self, messages: Sequence[Any], tools: list[Any] | None = None, prompt: bool = False
    ) -> Rendered:
        """The text of a conversation, with the prompt for an answer if that is asked for, and its blocks.

        Raises CannotMask with the template's reason.
        """
        environment = self._environment
        environment.rendered, environment.blocks = [], []
        given = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": prompt,
        }
        try:
            for piece in self._template.generate(self.variables, **given):
                environment.rendered.append(piece)
        except (*FAILS, RecursionError) as error:
            raise CannotMask(
                f"the template rejects it: {str(error) or type(error).__name__}"[:160]
            ) from error
        text = "".join(environment.rendered)
        blocks = [(begin, begin + len(block)) for begin, block in environment.blocks]
        if any(
            text[begin:end] != block
            for (begin, end), (_, block) in zip(blocks, environment.blocks, strict=True)
        ):
            raise CannotMask(
                "a generation block is within a macro, a filter or a set, so its place cannot be told"
            )
        return text, blocks


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


MOST_BYTES = 8 << 20  # of a template file


def find_chat_rule(spec: str, loss: LossRule) -> ChatRule:
    """One of ours; or the template of a tokenizer_config.json, of a chat_template.jinja beside it, or of a .jinja file.

    Raises FileNotFoundError if there is no such file, ValueError if it has no chat template.
    """
    if spec in NAMES:
        return ChatRule.named(spec, loss)
    path = Path(spec)
    if path.is_dir():
        path /= (
            "tokenizer_config.json"
            if (path / "tokenizer_config.json").exists()
            else "chat_template.jinja"
        )
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: expected {' or '.join(NAMES)}, a tokenizer_config.json or a .jinja file, found no such file; "
            "check --chat"
        )
    is_jinja = path.suffix == ".jinja"
    config = path.with_name("tokenizer_config.json") if is_jinja else path
    beside = path if is_jinja else path.with_name("chat_template.jinja")
    try:
        found = json.loads(_text(config)) if config.exists() else {}
    except ValueError as error:
        raise ValueError(
            f"{config}: expected a tokenizer_config.json, found broken JSON ({error})"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{config}: expected a tokenizer_config.json, found a {type(found).__name__}"
        )
    template = _text(beside) if beside.exists() else found.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {
            one.get("name"): one.get("template") for one in template if isinstance(one, dict)
        }.get("default")
    if not isinstance(template, str) or not template:
        raise ValueError(
            f"{path}: expected a chat_template in it, or a chat_template.jinja beside it, found neither; name another "
            "file by --chat, or use --chat chatml"
        )
    if not config.exists() and (names := re.findall(r"\b(?:bos|eos|pad|unk)_token\b", template)):
        raise ValueError(
            f"{path}: writes {names[0]}; put the tokenizer_config.json beside it that says which that is"
        )
    named = {key: value for key, value in sorted(found.items()) if key.endswith("_token")}
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        named |= found[key] if isinstance(found.get(key), dict) else {}
    texts = {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in named.items()
    }
    variables = {key: text for key, text in texts.items() if isinstance(text, str)}
    name = path.stem if is_jinja else path.absolute().parent.name or path.stem
    return ChatRule(name, template, loss, variables=variables)


def with_rule(tokenizer: Tokenizer, rule: ChatRule) -> Tokenizer:
    """The tokenizer of a chat set. Special tokens that it lacks are added if the rule says so, after its last id."""
    lacks = (
        [token for token in rule.needs if token not in tokenizer.special_tokens]
        if rule.adds
        else []
    )
    ids = {token: tokenizer.vocab_size + number for number, token in enumerate(lacks)}
    facts: dict[str, Any] = {"chat": replace(rule, text_fingerprint=tokenizer.fingerprint)}
    if isinstance(tokenizer, HuggingFace):
        if ordinary := [token for token in lacks if token.encode() in tokenizer.tokens.values()]:
            raise ValueError(
                f"{tokenizer.name}: {ordinary[0]} is an ordinary token; make it special in tokenizer.json"
            )
        added = [added_token(id, token, special=True) for token, id in ids.items()]
        added = [*(tokenizer.parts.get("added_tokens") or []), *added]
        facts["parts"] = tokenizer.parts | {"added_tokens": added}
    return replace(tokenizer, special_tokens=tokenizer.special_tokens | ids, **facts)


def _text(path: Path) -> str:
    return read_bounded(path, MOST_BYTES, "a chat template").decode("utf-8", "replace")
