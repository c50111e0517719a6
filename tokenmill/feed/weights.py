"""Numbers of a mixture: weights as whole numbers, and amounts of tokens, from what users write.

whole_weights({"web": 0.6, "code": 0.25, "math": 0.15})     {"code": 5, "math": 3, "web": 12}
tokens_of("begin", "900B")                                  900_000_000_000
"""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

from tokenmill.checks import whole_number

TURNS = 1 << 16  # most turns of a pattern
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
AMOUNT = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:e\d{1,2})?)([KMBT]?)", re.IGNORECASE)


def exact(name: str, value: Any, may_be_zero: bool = False) -> Fraction:
    """A positive number of any library, or 0, as an exact fraction: 0.1 is a tenth.

    ValueError for anything else.
    """
    expected = "a positive number, or 0" if may_be_zero else "a positive number"
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise ValueError(f"{name} must be {expected}, not {value!r}")
    is_finite = isinstance(value, Rational) or math.isfinite(value)
    is_zero = value == 0
    if not is_finite or value < 0 or (is_zero and not may_be_zero):
        raise ValueError(f"{name} must be {expected}, not {value}")
    if isinstance(value, Rational):  # whole numbers too
        return Fraction(int(value.numerator), int(value.denominator))
    return Fraction(str(value))


def tokens_of(name: str, amount: Any) -> int:
    """Parses a number of tokens: 900_000, 9e11, "900B", "1.5T". ValueError for anything else."""
    value = _parsed(amount) if isinstance(amount, str) else amount
    if value is not None:
        value = exact(name, value, may_be_zero=True)
    if value is None or value != int(value):
        raise ValueError(
            f"{name} must be a whole number of tokens, as 900_000 or '900B', not {amount!r}"
        )
    return whole_number(name, int(value))


def _parsed(amount: str) -> Fraction | None:
    match = AMOUNT.fullmatch(amount.strip())
    if match is None:
        return None
    number, unit = match.groups()
    return Fraction(number.replace("_", "")) * UNITS[unit.upper()]


def whole_weights(weights: Mapping[str, Any]) -> dict[str, int]:
    """Whole numbers in the same ratio, by name, with a sum of at most TURNS.

    They are exact if such numbers exist. Otherwise each weight gets its share of TURNS rounded
    down, and those that lost most get one more, ties by name, so that no share is off by more than
    1 / TURNS of the whole. Raises ValueError for a weight that is not a positive number, or that
    would round to zero.
    """
    shares = {name: exact(f"the weight of {name!r}", weights[name]) for name in sorted(weights)}
    if not shares:
        raise ValueError("expected a source with a weight above 0, found none")
    scale = math.lcm(*(share.denominator for share in shares.values()))
    lowest = _lowest({name: int(share * scale) for name, share in shares.items()})
    if sum(lowest.values()) <= TURNS:
        return lowest
    total = sum(shares.values())
    turns = {name: share * TURNS / total for name, share in shares.items()}
    rounded = {name: int(share) for name, share in turns.items()}
    most_lost = sorted(turns, key=lambda name: (rounded[name] - turns[name], name))
    for name in most_lost[: TURNS - sum(rounded.values())]:
        rounded[name] += 1
    for name, number in rounded.items():
        if not number:
            share = float(shares[name] / total)
            raise ValueError(
                f"the weight of {name!r} is {share:.1e} of the whole, less than the smallest share "
                f"that a mixture can keep, 1 / {TURNS:,}; leave it out, raise it, or join small "
                "sources into one"
            )
    return _lowest(rounded)


def _lowest(weights: dict[str, int]) -> dict[str, int]:
    divisor = math.gcd(*weights.values())
    return {name: weight // divisor for name, weight in weights.items()}


def powers(sizes: Mapping[str, Any], temperature: float = 1.0) -> dict[str, float]:
    """Weights from sizes, to the power of 1 / temperature.

    1 keeps the sizes, higher temperatures favor small sources (Arivazhagan et al., 2019; mT5's
    alpha is 1 / temperature). Raises ValueError for a number that is not positive.
    """
    power = 1 / exact("temperature", temperature)
    exact_sizes = {name: exact(f"the size of {name!r}", size) for name, size in sizes.items()}
    if power == 1:
        return {name: float(size) for name, size in exact_sizes.items()}
    largest = max(exact_sizes.values(), default=Fraction(1))
    return {name: float(size / largest) ** float(power) for name, size in exact_sizes.items()}
