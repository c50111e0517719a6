"""The dataset card of a token set on the hub, from its manifest alone."""

import json
from typing import Any

from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet

CARD = """---
license: {license}
viewer: false
tags:
- tokenmill
- pretraining
- tokens
---

# {name}

Token ids for pretraining, prepared by tokenmill: every document begins with `{bos}`, and nothing was dropped.

| | |
| --- | --- |
| tokenizer | {tokenizer}, {vocab_size:,} tokens, fingerprint `{fingerprint}` |
| stored as | {dtype}, little-endian |
{splits}
| text | {text_bytes:,} bytes |
| from | {source} |
| manifest | `{digest}` |

Train on it without downloading it first:

```python
from tokenmill import RowLoader        # pip install 'tokenmill[remote]'

loader = RowLoader("{address}", batch_size=32, seq_len=2048, device="cuda")
for inputs, targets in loader:
    ...
```

Or download it first: `tokenmill pull {address}`.

`shards/*.bin` are token ids and nothing else, `shards/*.idx` the offset of each document (uint64), `shards/*.json` what
each shard was made of, with checksums; `tokenizer.json` decodes them with no network.
"""


def card_of(token_set: TokenSet, address: str, license: str) -> str:
    """README.md for the hub: YAML that it reads, and a page for people."""
    tokenizer = token_set.tokenizer
    return CARD.format(
        license=json.dumps(license),
        name=token_set.manifest["dataset"],
        bos=tokenizer["bos_token"],
        tokenizer=tokenizer["name"],
        vocab_size=tokenizer["vocab_size"],
        fingerprint=tokenizer["fingerprint"],
        dtype=token_set.dtype,
        splits="\n".join(_counts(token_set, split) for split in SPLITS),
        text_bytes=token_set.manifest["text_bytes"],
        source=_source(token_set.manifest),
        digest=token_set.digest,
        address=address,
    )


def _counts(token_set: TokenSet, split: str) -> str:
    entries = token_set.split(split)
    documents, tokens = sum(entry.documents for entry in entries), sum(entry.tokens for entry in entries)
    return f"| {split} | {tokens:,} tokens, {documents:,} documents, {len(entries):,} shards |"


def _source(manifest: dict[str, Any]) -> str:
    """Where the text is from, as far as the manifest knows."""
    hub = manifest.get("hub")
    if not hub:
        return "files that are not on the hub"
    link = f"https://huggingface.co/datasets/{hub['repository']}/tree/{hub['commit']}"
    return f"[{hub['repository']}]({link}) at commit `{hub['commit']}`"
