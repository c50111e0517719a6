"""What a checkpoint knows of the data: the next row, and what must match for that to mean anything.

identity    version 1, fingerprint 1bd4..., split train, shards ef12..., seq_len 2048, packing best_fit,
            long_documents split, shuffle true, seed 1337
place       epoch 0, shard 3, row 512
skip_rows   0:2:100-163, where there are any
"""

from tokenmill.skipped import Skipped, format_skipped

VERSION = 1


def position_of(identity: dict, place: dict[str, int], skipped: Skipped) -> dict:
    """A position, of plain numbers and texts."""
    return identity | place | ({"skip_rows": format_skipped(skipped)} if skipped else {})


def read_position(state: dict, identity: dict, place: dict[str, int], where) -> tuple[dict[str, int], list[str]]:
    """The place in a position, of the keys of `place`, and its skip_rows.

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
    return {key: int(state[key]) for key in place}, list(state.get("skip_rows", ()))
