"""Formats amounts for people: "1 shard", "13.8 MB", "2 h 5 min". Every wing may import this module; it imports none."""

MINUTE, HOUR = 60, 3_600


def counted(count: int, what: str) -> str:
    """1, "shard" -> "1 shard"; 1200, "shard" -> "1,200 shards"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def in_bytes(count: float) -> str:
    """812 -> "812 bytes", 13_800_000 -> "13.8 MB"; a kB is 1,000 bytes."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return counted(round(count), "byte")


def in_time(seconds: float) -> str:
    """7.4 -> "7 s", 200 -> "3 min 20 s", 7500 -> "2 h 5 min"."""
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    return f"{whole // HOUR:,} h {whole % HOUR // MINUTE} min"
