"""The dataset card of a token set on the hub, from its manifest alone."""

import json

from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet

CARD = """---
license: {license}
viewer: false
tags: [tokenmill, pretraining, tokens]
---

# {name}

Token ids for pretraining, prepared by tokenmill from {text_bytes:,} bytes of text. Every document begins with `{bos}`.

| tokenizer | {tokenizer}, fingerprint `{fingerprint}` |
| --- | --- |
{rows}
| manifest | `{digest}` |

```python
from tokenmill import RowLoader        # or first: tokenmill pull {address}

loader = RowLoader("{address}", batch_size=32, seq_len=2048, device="cuda")
```
"""


def card_of(token_set: TokenSet, address: str, license: str) -> str:
    """README.md for the hub: YAML that it reads, and a page for people."""
    manifest, tokenizer, rows = token_set.manifest, token_set.tokenizer, list[str]()
    for split in SPLITS:
        entries = token_set.split(split)
        tokens, documents = sum(entry.tokens for entry in entries), sum(entry.documents for entry in entries)
        rows.append(f"| {split} | {tokens:,} tokens, {documents:,} documents |")
    if hub := manifest.get("hub"):
        rows.append(f"| from | {hub['repository']} on the hub, at commit `{hub['commit']}` |")
    facts = {"name": manifest["dataset"], "text_bytes": manifest["text_bytes"], "bos": tokenizer["bos_token"]}
    facts |= {"tokenizer": tokenizer["name"], "fingerprint": tokenizer["fingerprint"], "digest": token_set.digest}
    return CARD.format(**facts, license=json.dumps(license), rows="\n".join(rows), address=address)
