"""Finds the chat rule that --chat names: one of ours, or the chat template of a model.

find_chat_rule("chatml", "all")
find_chat_rule("qwen/tokenizer_config.json", "all")       any Jinja chat template, and its bos_token, eos_token
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.store.files import read_bounded
from tokenmill.tokenize.chat_rule import NAMES, ChatRule, LossRule
from tokenmill.tokenize.huggingface import HuggingFace, added_token
from tokenmill.tokenize.tokenizer import Tokenizer

MOST_BYTES = 8 << 20  # of a template file


def find_chat_rule(spec: str, loss: LossRule) -> ChatRule:
    """One of ours; or the template of a tokenizer_config.json, of a chat_template.jinja beside it, or of a .jinja file.

    Raises FileNotFoundError if there is no such file, ValueError if it has no chat template.
    """
    if spec in NAMES:
        return ChatRule.named(spec, loss)
    path = Path(spec)
    if path.is_dir():
        path /= "tokenizer_config.json" if (path / "tokenizer_config.json").exists() else "chat_template.jinja"
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
        raise ValueError(f"{config}: expected a tokenizer_config.json, found broken JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{config}: expected a tokenizer_config.json, found a {type(found).__name__}")
    template = _text(beside) if beside.exists() else found.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}.get("default")
    if not isinstance(template, str) or not template:
        raise ValueError(
            f"{path}: expected a chat_template in it, or a chat_template.jinja beside it, found neither; name another "
            "file by --chat, or use --chat chatml"
        )
    if not config.exists() and (names := re.findall(r"\b(?:bos|eos|pad|unk)_token\b", template)):
        raise ValueError(f"{path}: writes {names[0]}; put the tokenizer_config.json beside it that says which that is")
    named = {key: value for key, value in sorted(found.items()) if key.endswith("_token")}
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        named |= found[key] if isinstance(found.get(key), dict) else {}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    variables = {key: text for key, text in texts.items() if isinstance(text, str)}
    name = path.stem if is_jinja else path.absolute().parent.name or path.stem
    return ChatRule(name, template, loss, variables=variables)


def with_rule(tokenizer: Tokenizer, rule: ChatRule) -> Tokenizer:
    """The tokenizer of a chat set. Special tokens that it lacks are added if the rule says so, after its last id."""
    lacks = [token for token in rule.needs if token not in tokenizer.special_tokens] if rule.adds else []
    ids = {token: tokenizer.vocab_size + number for number, token in enumerate(lacks)}
    facts: dict[str, Any] = {"chat": replace(rule, text_fingerprint=tokenizer.fingerprint)}
    if isinstance(tokenizer, HuggingFace):
        if ordinary := [token for token in lacks if token.encode() in tokenizer.tokens.values()]:
            raise ValueError(f"{tokenizer.name}: {ordinary[0]} is an ordinary token; make it special in tokenizer.json")
        added = [added_token(id, token, special=True) for token, id in ids.items()]
        added = [*(tokenizer.parts.get("added_tokens") or []), *added]
        facts["parts"] = tokenizer.parts | {"added_tokens": added}
    return replace(tokenizer, special_tokens=tokenizer.special_tokens | ids, **facts)


def _text(path: Path) -> str:
    return read_bounded(path, MOST_BYTES, "a chat template").decode("utf-8", "replace")
