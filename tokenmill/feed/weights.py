"""The weights of a mixture: as whole numbers, and from sizes.

    whole_weights({"web": 0.6, "code": 0.25, "math": 0.15})     code 5, math 3, web 12: exact, of 20 turns
    powers({"web": 900, "code": 100}, temperature=2)            3 to 1: sizes to the power of 1 / temperature

Weights are shares of tokens. All rows of a run hold the same number of tokens, so weights are also shares of rows, and
of turns (interleave.py).
"""

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

TURNS = 1 << 16  # most turns of a pattern


def exact(name: str, value: Any) -> Fraction:
    """A positive number of any library as an exact fraction: 0.1 is a tenth. ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise ValueError(f"{name} must be a positive number, not {value!r}")
    if value <= 0 or not (isinstance(value, Rational) or math.isfinite(value)):
        raise ValueError(f"{name} must be a positive number, not {value}; leave out what you do not want to use")
    if isinstance(value, Rational):  # whole numbers too
        return Fraction(int(value.numerator), int(value.denominator))
    return Fraction(str(value))


def whole_weights(weights: Mapping[str, Any]) -> dict[str, int]:
    """Whole numbers in the same ratio, by name, with a sum of at most TURNS.

    They are exact if such numbers exist. Otherwise each weight gets its share of TURNS rounded down, and those that
    lost most get one more, ties by name, so that no share is off by more than 1 / TURNS of the whole. Raises ValueError
    for a weight that is not a positive number, or that would round to zero.
    """
    shares = {name: exact(f"the weight of {name!r}", weights[name]) for name in sorted(weights)}
    if not shares:
        raise ValueError("expected weights of at least one source, found none")
    scale = math.lcm(*(share.denominator for share in shares.values()))
    whole = _lowest({name: int(share * scale) for name, share in shares.items()})
    if sum(whole.values()) <= TURNS:
        return whole
    total = sum(shares.values())
    parts = {name: share * TURNS / total for name, share in shares.items()}
    whole = {name: int(part) for name, part in parts.items()}
    lost = sorted(parts, key=lambda name: (whole[name] - parts[name], name))
    for name in lost[: TURNS - sum(whole.values())]:
        whole[name] += 1
    for name, number in whole.items():
        if not number:
            raise ValueError(
                f"the weight of {name!r} is {float(shares[name] / total):.1e} of the whole, less than the smallest "
                f"share that a mixture can keep, 1 / {TURNS:,}; leave it out, raise it, or join small sources into one"
            )
    return _lowest(whole)


def _lowest(whole: dict[str, int]) -> dict[str, int]:
    divisor = math.gcd(*whole.values())
    return {name: number // divisor for name, number in whole.items()}


def powers(sizes: Mapping[str, Any], temperature: float = 1.0) -> dict[str, float]:
    """Weights from sizes, to the power of 1 / temperature: 1 keeps the sizes, higher temperatures favor small sources.

    (Arivazhagan et al., 2019; mT5's alpha is 1 / temperature.) Raises ValueError for a number that is not positive.
    """
    power = 1 / exact("temperature", temperature)
    found = {name: exact(f"the size of {name!r}", size) for name, size in sizes.items()}
    largest = max(found.values(), default=Fraction(1))
    return {name: float(size) if power == 1 else float(size / largest) ** float(power) for name, size in found.items()}
