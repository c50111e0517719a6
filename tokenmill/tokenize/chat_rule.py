"""ChatRule: how conversations become text, and which turns are learned. A tokenizer carries it (tokenize/tokenizer.py).

    ChatRule.named("nanochat", "all")                     nanochat's own rendering
    ChatRule.named("chatml", "last")                      <|im_start|>user ... <|im_end|>; only the last turn is learned

chat/templates.py reads any Jinja chat template. The rule is part of the tokenizer's fingerprint.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, Self

LossRule = Literal["all", "last"]
VERSION = 1  # of what is learned of a turn; another one makes another token set
NANOCHAT_TOKENS = tuple(
    f"<|{part}_{end}|>"
    for part in ("user", "assistant", "python", "output")
    for end in ("start", "end")
)
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
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
    needs: tuple[str, ...] = field(
        default=(), compare=False
    )  # special tokens that the template writes
    adds: bool = field(
        default=False, compare=False
    )  # whether those that the tokenizer lacks are added to it
    variables: dict[str, str] = field(
        default_factory=dict
    )  # bos_token, eos_token ... as the template sees them
    # of the tokenizer without this rule, and without the tokens that were added for it
    text_fingerprint: str = ""

    @property
    def is_nanochat(self) -> bool:
        return not self.template

    @classmethod
    def named(cls, name: str, loss: LossRule) -> Self:
        if name == "nanochat":
            return cls(name, "", loss, NANOCHAT_TOKENS)
        return cls(name, CHATML, loss, CHATML_TOKENS, adds=True)

    def as_dict(self) -> dict[str, Any]:
        """As tokenizer.json and the manifest hold it."""
        facts = {
            "name": self.name,
            "template": self.template,
            "loss": self.loss,
            "version": VERSION,
        }
        return facts | {"text_fingerprint": self.text_fingerprint, "variables": self.variables}

    @classmethod
    def of_dict(cls, saved: dict[str, Any]) -> Self:
        """What `as_dict` gave."""
        needs = NANOCHAT_TOKENS if not saved["template"] else ()
        more = {name: saved[name] for name in ("variables", "text_fingerprint")}
        return cls(saved["name"], saved["template"], saved["loss"], needs, **more)
