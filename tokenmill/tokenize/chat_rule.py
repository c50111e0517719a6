"""ChatRule: how conversations become text, and which turns are learned. A tokenizer carries it (tokenize/tokenizer.py).

    ChatRule.named("nanochat", "all")                     nanochat's own rendering
    ChatRule.named("chatml", "last")                      <|im_start|>user ... <|im_end|>; only the last turn is learned
    ChatRule.read(Path("qwen/tokenizer_config.json"), "all")      any Jinja chat template, and its bos_token, eos_token

It is part of the tokenizer's fingerprint: a changed template makes another token set.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from tokenmill.store.files import read_bounded

LossRule = Literal["all", "last"]
VERSION = 1  # of what is learned of a turn; another one makes another token set
MOST_BYTES = 8 << 20  # of a template file
NANOCHAT_TOKENS = tuple(
    f"<|{part}_{end}|>" for part in ("user", "assistant", "python", "output") for end in ("start", "end")
)
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
MOST_ADDED = len(CHATML_TOKENS)  # tokens that a rule adds to a tokenizer
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMES = ("nanochat", "chatml")


@dataclass(frozen=True)
class ChatRule:
    """A chat template and what is learned."""

    name: str  # of the template, for display
    template: str  # Jinja; "" for nanochat's
    loss: LossRule = "all"  # which of the assistant's turns are learned
    needs: tuple[str, ...] = field(default=(), compare=False)  # special tokens that the template writes
    adds: bool = field(default=False, compare=False)  # whether those that the tokenizer lacks are added to it
    variables: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token ... as the template sees them
    text_fingerprint: str = ""  # of the tokenizer without this rule, and without the tokens that were added for it

    @property
    def is_nanochat(self) -> bool:
        return not self.template

    @classmethod
    def named(cls, name: str, loss: LossRule) -> Self:
        if name == "nanochat":
            return cls(name, "", loss, NANOCHAT_TOKENS)
        return cls(name, CHATML, loss, CHATML_TOKENS, adds=True)

    @classmethod
    def read(cls, path: Path, loss: LossRule) -> Self:
        """The template of a tokenizer_config.json, or of a chat_template.jinja beside it or named itself.

        Raises FileNotFoundError if there is no such file, ValueError if it has no chat template.
        """
        path = path / "tokenizer_config.json" if path.is_dir() else path
        if not path.exists():
            raise FileNotFoundError(
                f"{path}: expected {' or '.join(NAMES)}, a tokenizer_config.json or a .jinja file, found no such file; "
                "check --chat"
            )
        if path.suffix == ".jinja":
            config = path.with_name("tokenizer_config.json")
            variables = _variables(_json(config)) if config.exists() else {}
            return cls(path.stem, _text(path), loss, variables=variables)
        found = _json(path)
        beside = path.with_name("chat_template.jinja")
        template = _text(beside) if beside.exists() else _template_of(path, found.get("chat_template"))
        return cls(Path(path).absolute().parent.name or path.stem, template, loss, variables=_variables(found))

    def as_dict(self) -> dict[str, Any]:
        """As tokenizer.json and the manifest hold it."""
        facts = {"name": self.name, "template": self.template, "loss": self.loss, "version": VERSION}
        return facts | {"variables": self.variables, "text_fingerprint": self.text_fingerprint}

    @classmethod
    def of_dict(cls, saved: dict[str, Any]) -> Self:
        """What `as_dict` gave."""
        needs = NANOCHAT_TOKENS if not saved["template"] else ()
        more = {"variables": saved["variables"], "text_fingerprint": saved["text_fingerprint"]}
        return cls(saved["name"], saved["template"], saved["loss"], needs, **more)


def find_chat_rule(spec: str, loss: LossRule) -> ChatRule:
    """The rule that --chat names. Raises what `ChatRule.read` raises."""
    return ChatRule.named(spec, loss) if spec in NAMES else ChatRule.read(Path(spec), loss)


def _text(path: Path) -> str:
    return read_bounded(path, MOST_BYTES, "a chat template").decode("utf-8", "replace")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise ValueError(f"{path}: expected a tokenizer_config.json, found broken JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a tokenizer_config.json, found a {type(found).__name__}")
    return found


def _template_of(path: Path, given: Any) -> str:
    if isinstance(given, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in given if isinstance(one, dict)}
        given = named.get("default")
    if not isinstance(given, str) or not given:
        raise ValueError(
            f"{path}: expected a chat_template in it, or a chat_template.jinja beside it, found neither; name another "
            "file by --chat, or use --chat chatml"
        )
    return given


def _variables(config: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and so on, as templates see them."""
    named = {key: value for key, value in sorted(config.items()) if key.endswith("_token")}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}
