"""Finds the chat template that --chat names, and puts it into a tokenizer.

find_chat_rule("chatml", "all")                         one of ours
find_chat_rule("qwen/tokenizer_config.json", "all")     a model's, with its bos_token ...
with_rule(tokenizer, rule)                              the tokenizer of a chat set
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.addresses import path_of
from tokenmill.store.files import read_bounded
from tokenmill.tokenize.chat_rule import NAMES, ChatRule, LossRule
from tokenmill.tokenize.tokenizer import Tokenizer

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TOKEN_NAMES = re.compile(r"\b(?:bos|eos|pad|unk)_token\b")
MORE_TOKENS = ("extra_special_tokens", "model_specific_special_tokens")
MOST_BYTES = 8 << 20  # of a template file


def find_chat_rule(spec: str, loss: LossRule) -> ChatRule:
    """One of ours; or the template of a tokenizer_config.json, or of a .jinja file.

    Raises FileNotFoundError if there is no such file, ValueError if it has no chat template.
    """
    if spec in NAMES:
        return ChatRule.named(spec, loss)
    path = path_of(spec)
    if path.is_dir():
        path = path / CONFIG if (path / CONFIG).exists() else path / TEMPLATE
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: expected {' or '.join(NAMES)}, a tokenizer_config.json or a .jinja file, "
            "found no such file; check --chat"
        )
    is_jinja = path.suffix == ".jinja"
    config_path = path.with_name(CONFIG) if is_jinja else path
    template_path = path if is_jinja else path.with_name(TEMPLATE)
    has_config = config_path.exists()
    config = _read_config(config_path) if has_config else {}
    template = _text(template_path) if template_path.exists() else _template_in(config)
    if not isinstance(template, str) or not template:
        raise ValueError(
            f"{path}: expected a chat_template in it, or a chat_template.jinja beside it, found "
            "neither; name another file by --chat, or use --chat chatml"
        )
    unknown = TOKEN_NAMES.search(template)
    if not has_config and unknown:
        raise ValueError(
            f"{path}: writes {unknown[0]}; put the tokenizer_config.json beside it that says which "
            "that is"
        )
    return ChatRule(_name_of(path), template, loss, variables=_variables(config))


def _name_of(path: Path) -> str:
    """The name of a template: its file's, or its folder's if all such files have one name."""
    if path.suffix == ".jinja" and path.name != TEMPLATE:
        return path.stem
    return path.absolute().parent.name or path.stem


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(_text(path))
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a tokenizer_config.json, found broken JSON ({error})"
        ) from error
    if not isinstance(config, dict):
        raise ValueError(
            f"{path}: expected a tokenizer_config.json, found a {type(config).__name__}"
        )
    return config


def _template_in(config: dict[str, Any]) -> Any:
    template = config.get("chat_template")
    if not isinstance(template, list):
        return template
    by_name = {
        each.get("name"): each.get("template") for each in template if isinstance(each, dict)
    }
    return by_name.get("default")


def _variables(config: dict[str, Any]) -> dict[str, str]:
    """The special tokens that a config names, as a template sees them."""
    tokens = {key: value for key, value in sorted(config.items()) if key.endswith("_token")}
    for key in MORE_TOKENS:
        if isinstance(config.get(key), dict):
            tokens |= config[key]
    variables = {}
    for key, token in tokens.items():
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            variables[key] = text
    return variables


def with_rule(tokenizer: Tokenizer, rule: ChatRule) -> Tokenizer:
    """The tokenizer of a chat set.

    Special tokens that it lacks are added if the rule says so, after its last id.
    """
    missing = []
    if rule.adds:
        missing = [token for token in rule.needs if token not in tokenizer.special_tokens]
    chat = replace(rule, text_fingerprint=tokenizer.fingerprint)
    return replace(tokenizer.with_added(missing), chat=chat)


def _text(path: Path) -> str:
    return read_bounded(path, MOST_BYTES, "a chat template").decode("utf-8", "replace")
