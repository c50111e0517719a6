"""Finds the chat rule that --chat names: one of ours, or the chat template of a model.

find_chat_rule("chatml", "all")
read_rule(Path("qwen/tokenizer_config.json"), "all")      any Jinja chat template, and its bos_token, eos_token
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.store.files import read_bounded
from tokenmill.tokenize.chat_rule import NAMES, ChatRule, LossRule
from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.tokenizer import Tokenizer

MOST_BYTES = 8 << 20  # of a template file


def read_rule(path: Path, loss: LossRule) -> ChatRule:
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
        return ChatRule(path.stem, _text(path), loss, variables=variables)
    found = _json(path)
    beside = path.with_name("chat_template.jinja")
    template = _text(beside) if beside.exists() else _template_of(path, found.get("chat_template"))
    return ChatRule(Path(path).absolute().parent.name or path.stem, template, loss, variables=_variables(found))


def find_chat_rule(spec: str, loss: LossRule) -> ChatRule:
    """The rule that --chat names. Raises what `read_rule` raises."""
    return ChatRule.named(spec, loss) if spec in NAMES else read_rule(Path(spec), loss)


def with_rule(tokenizer: Tokenizer, rule: ChatRule) -> Tokenizer:
    """The tokenizer of a chat set. Special tokens that it lacks are added if the rule says so, after its last id."""
    lacks = [token for token in rule.needs if token not in tokenizer.special_tokens] if rule.adds else []
    ids = {token: tokenizer.vocab_size + number for number, token in enumerate(lacks)}
    facts: dict[str, Any] = {"chat": replace(rule, text_fingerprint=tokenizer.fingerprint)}
    if isinstance(tokenizer, HuggingFace):
        whole = json.loads(tokenizer.whole)
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added = [{"id": id, "content": token, **plain, "special": True} for token, id in ids.items()]
        whole["added_tokens"] = [*(whole.get("added_tokens") or []), *added]
        facts["whole"] = json.dumps(whole, ensure_ascii=False)
    return replace(tokenizer, special_tokens=tokenizer.special_tokens | ids, **facts)


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
    """bos_token, eos_token and so on, as templates see them; those of models under names of their own, too."""
    named = {key: value for key, value in sorted(config.items()) if key.endswith("_token")}
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        named |= config[key] if isinstance(config.get(key), dict) else {}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}
