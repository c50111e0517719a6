"""What a checkpoint knows of the data: the next row, and what must match for that to mean anything.

identity    version 1, fingerprint 1bd4..., split train, shards ef12..., seq_len 2048, packing best_fit,
            long_documents split, shuffle true, seed 1337
place       epoch 0, shard 3, row 512
skip_rows   0:2:100-163, where there are any
tokens_seen 25165824, of all ranks, since training began; older positions lack it
"""

from typing import Any, NamedTuple

from tokenmill.rows.skipped import Skipped, format_skipped

VERSION = 1


class Position(NamedTuple):
    """A position without its identity."""

    place: dict[str, int]
    skip_rows: list[str]
    tokens_seen: int | None


def position_of(
    identity: dict[str, Any], place: dict[str, int], skipped: Skipped, tokens_seen: int | None
) -> dict[str, Any]:
    """A position, of plain numbers and texts."""
    skip_rows = {"skip_rows": format_skipped(skipped)} if skipped else {}
    seen = {} if tokens_seen is None else {"tokens_seen": tokens_seen}
    return identity | place | skip_rows | seen


def read_position(state: dict[str, Any], identity: dict[str, Any], place: dict[str, int], where: object) -> Position:
    """A position that `position_of` made, with a place of the keys of `place`.

    ValueError, naming both values, where it is of another identity than that of a loader of `where`.
    """
    for key, here in identity.items():
        if state.get(key) != here:
            advice = "load it with the settings and token set that it was saved with"
            if key == "version" and isinstance(state.get(key), int) and state[key] > here:
                advice = "it was made by a newer tokenmill, so load it with that"
            raise ValueError(
                f"this position does not fit the loader: {key} is {state.get(key)!r} in the position, "
                f"{here!r} here ({where}); {advice}"
            )
    if missing := place.keys() - state.keys():
        raise ValueError(
            f"{', '.join(sorted(missing))} is missing from the position; it is not one that state_dict made"
        )
    seen = state.get("tokens_seen")
    place = {key: int(state[key]) for key in place}
    return Position(place, list(state.get("skip_rows", ())), None if seen is None else int(seen))
