"""Which token sets can be the sources of one mixture: those whose ids mean the same.

require_compatible({"web": TokenSet(...), "code": TokenSet(...)})
"""

from collections.abc import Mapping

from tokenmill.store.token_sets import TokenSet


def require_compatible(sets: Mapping[str, TokenSet]) -> None:
    """ValueError if sets have different tokenizers, or if two have the same documents as often."""
    tokenizers = {}
    for name, token_set in sets.items():
        ids = (ids_fingerprint(token_set), token_set.bos_id)
        tokenizers[ids] = f"{name!r} with {token_set.tokenizer['name']}, {ids[0]}"
    if len(tokenizers) > 1:
        listed = ", ".join(tokenizers.values())
        raise ValueError(
            f"the sources of a mixture must have the same tokenizer, found {listed}; "
            "prepare some of them again with the tokenizer of the others"
        )
    dtypes = {token_set.dtype: name for name, token_set in sets.items()}
    if len(dtypes) > 1:
        listed = ", ".join(f"{dtype} in {name!r}" for dtype, name in dtypes.items())
        raise ValueError(
            f"the sources of a mixture must have ids of one type, found {listed}: the tokens that "
            "a chat template adds are beyond the 65,536 of uint16; use a tokenizer with fewer"
        )
    names: dict[tuple[str, str], str] = {}
    for name, token_set in sets.items():
        same = names.setdefault((token_set.digest, token_set.view_digest), name)
        if same != name:
            raise ValueError(
                f"sources {same!r} and {name!r} have the same documents, "
                f"{token_set.display_name}; keep only one"
            )


def ids_fingerprint(token_set: TokenSet) -> str:
    """The fingerprint of the tokenizer that gives text its ids.

    Of a chat set, without its template and the special tokens that it has added. So chat and text
    that share a tokenizer can be mixed.
    """
    chat = token_set.tokenizer.get("chat")
    return str(token_set.tokenizer["fingerprint"] if chat is None else chat["text_fingerprint"])
