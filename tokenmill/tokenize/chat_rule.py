"""ChatRule: how conversations become text, and which turns are in the loss.

    ChatRule.named("nanochat", "all")       nanochat's own rendering
    ChatRule.named("chatml", "last")        <|im_start|>user ... <|im_end|>; the last turn alone

A tokenizer carries the rule (tokenize/tokenizer.py), which is part of its fingerprint.
chat/templates.py reads any Jinja chat template.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, Self

LossRule = Literal["all", "last"]
VERSION = 1  # of what is in the loss of a turn; another one makes another token set
NANOCHAT_TOKENS = (
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMES = ("nanochat", "chatml")


@dataclass(frozen=True)
class ChatRule:
    """A chat template and which turns are in the loss."""

    name: str  # of the template, for display
    template: str  # Jinja; "" for nanochat's
    loss: LossRule = "all"  # which of the assistant's turns are in the loss
    # special tokens that the template writes, and whether a tokenizer that lacks them gets them
    needs: tuple[str, ...] = field(default=(), compare=False)
    adds: bool = field(default=False, compare=False)
    # bos_token, eos_token ... as the template sees them
    variables: dict[str, str] = field(default_factory=dict)
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
        return {
            "name": self.name,
            "template": self.template,
            "loss": self.loss,
            "version": VERSION,
            "text_fingerprint": self.text_fingerprint,
            "variables": self.variables,
        }

    @classmethod
    def of_dict(cls, saved: dict[str, Any]) -> Self:
        """What `as_dict` gave."""
        return cls(
            saved["name"],
            saved["template"],
            saved["loss"],
            needs=() if saved["template"] else NANOCHAT_TOKENS,
            variables=saved["variables"],
            text_fingerprint=saved["text_fingerprint"],
        )
