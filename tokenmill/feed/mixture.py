"""Mixture: several token sets by weight, in stages, with caps; checked and in one normal form.

    Mixture({"data/tokens/web": 60, "data/tokens/code": 25, "data/tokens/math": 15})
    Mixture([(0, {"data/tokens/web": 3, "data/tokens/code": 1}), ("900B", {"data/tokens/math": 1})])
    Mixture.load("mixture.toml")

A source is identified by its name: the random order of its rows depends on the name, and positions use it. If you give
only a path, the last part of the path is the name. One token set is a mixture of one, whose source is called "".

Weights are shares of tokens. All rows of a run hold the same number of tokens, so weights are also shares of rows, and
of turns (interleave.py), as whole numbers: 0.6, 0.25 and 0.15 are 12, 5 and 3 of 20 turns.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real
from pathlib import Path
from typing import Any

from tokenmill.addresses import name_of
from tokenmill.checks import whole_number
from tokenmill.feed.mixture_file import arguments_of, folder_of, read_toml
from tokenmill.remote.token_set import DEFAULT_CACHE, CacheConfig, open_set
from tokenmill.rows.run import Stage
from tokenmill.store.names import is_plain
from tokenmill.store.token_sets import TokenSet

TURNS = 1 << 16  # most turns of a pattern


def exact(name: str, value: Any) -> Fraction:
    """A positive number of any library as an exact fraction: 0.1 is a tenth. ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise ValueError(f"{name} must be a positive number, not {value!r}")
    if value <= 0 or not (isinstance(value, Rational) or math.isfinite(value)):
        raise ValueError(
            f"{name} must be a positive number, not {value}; leave out what you do not want to use"
        )
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
    return {
        name: float(size) if power == 1 else float(size / largest) ** float(power)
        for name, size in found.items()
    }


PathLike = str | os.PathLike[str]
Weights = Mapping[str, Any]  # a positive number for each source
ONE_SET = ""  # the source's name if a loader reads one token set
UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


class Mixture:
    """Token sets by weight. Pass it to RowLoader, get_batch or PackedRows instead of a token set.

    | parameter | |
    | --- | --- |
    | weights | {source: weight}; or stages [(0, {...}), ("900B", {...})], each starting at a number of tokens |
    | sources | {name: folder}; a source that is not listed is a folder, or a name under data/tokens |
    | views | {source: view}, the name of a view of its token set (docs/views.md); by default all documents, once |
    | max_epochs | {source: epochs} after which it retires in training, or one number for all; the others continue |
    | removed | names of sources that you took out on purpose; positions keep their cursors |

    Weights are shares of tokens and can be any positive numbers (they are made whole). Two mixtures with
    the same meaning are equal. Raises ValueError for invalid settings.
    """

    def __init__(
        self,
        weights: Weights | Sequence[tuple[Any, Weights]],
        *,
        sources: Mapping[str, PathLike] | None = None,
        views: Mapping[str, str | None] | None = None,
        max_epochs: Mapping[str, int] | int | None = None,
        removed: Iterable[str] = (),
    ):
        self.paths = {
            _plain(name): folder_of(path, Path.cwd())
            for name, path in _mapping("sources", sources).items()
        }
        self.stages = self._read_stages([(0, weights)] if isinstance(weights, Mapping) else weights)
        if unused := [
            name for name in self.paths if all(name not in stage.weights for stage in self.stages)
        ]:
            raise ValueError(
                f"source {unused[0]!r} has no weight; leave it out, or, if a run used it, list it in removed"
            )
        self.views = {
            self._known("views", s): v for s, v in _mapping("views", views).items() if v is not None
        }
        if wrong := [view for view in self.views.values() if not isinstance(view, str) or not view]:
            raise ValueError(f"a view must be the name of a view, not {wrong[0]!r}")
        if max_epochs is not None and not isinstance(max_epochs, Mapping):
            max_epochs = dict.fromkeys(self.paths, max_epochs)
        self.max_epochs = {
            self._known("max_epochs", source): whole_number(f"max_epochs of {source!r}", cap, 1)
            for source, cap in (max_epochs or {}).items()
        }
        if isinstance(removed, str | Mapping) or not isinstance(removed, Iterable):
            raise ValueError(f"removed must be a list of names, not {removed!r}")
        self.removed = tuple(sorted({_plain(name) for name in removed}))
        if both := [name for name in self.removed if name in self.paths]:
            raise ValueError(f"source {both[0]!r} is both in the mixture and in removed")

    @classmethod
    def load(cls, path: PathLike) -> "Mixture":
        """Loads a mixture from a TOML file. Folders are relative to the file, or names under data/tokens. Raises
        FileNotFoundError if there is no such file, and ValueError with the key that is invalid.
        """
        content = read_toml(path)
        try:
            return cls(**arguments_of(content, Path(path).resolve().parent))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def of(cls, tokens: "PathLike | Mixture", view: str | None = None) -> "Mixture":
        """A token set, or a view of it, as a mixture of one; a mixture as it is."""
        if isinstance(tokens, Mixture):
            return tokens
        one = object.__new__(cls)
        one.paths, one.stages = {ONE_SET: folder_of(tokens, Path.cwd())}, [Stage(0, {ONE_SET: 1})]
        one.views, one.max_epochs, one.removed = {ONE_SET: view} if view else {}, {}, ()
        return one

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources, in the order in which `loader.row_sources` numbers them."""
        return tuple(self.paths)

    def __getitem__(self, source: str) -> str | Path:
        """A source's folder or address, as for RowLoader(mixture["math"], "val", epochs=1). KeyError if unknown."""
        return self.paths[source]

    def at(self, tokens: int | float | str) -> "Mixture":
        """A mixture that always has the weights of one moment of the run, for example for validation."""
        moment = tokens_of("tokens", tokens)
        weights = [stage for stage in self.stages if stage.begin <= moment][-1].weights
        settings: tuple[dict[str, Any], ...] = (self.paths, self.views, self.max_epochs)
        paths, views, caps = (
            {name: one for name, one in some.items() if name in weights} for some in settings
        )
        return Mixture(weights, sources=paths, views=views, max_epochs=caps, removed=self.removed)

    def open(self, cache: CacheConfig = DEFAULT_CACHE) -> dict[str, TokenSet]:
        """The token sets, with their views, by name. `cache` says where remote ones are cached. ValueError if two have
        other tokenizers, or are one set with equal views.
        """
        sets = {
            name: open_set(path, cache).viewed(self.views.get(name))
            for name, path in self.paths.items()
        }
        _require_compatible(sets)
        return sets

    def _key(self) -> tuple[Any, ...]:
        stages = [(begin, sorted(weights.items())) for begin, weights in self.stages]
        settings = [*map(sorted, (self.views.items(), self.max_epochs.items()))]
        return repr((stages, settings, self.removed)), tuple(self.paths.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mixture) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        stages = [f"{begin:,}: {weights}" for begin, weights in self.stages]
        views = [f"view of {name} {view}" for name, view in self.views.items()]
        caps = [f"max_epochs of {name} {cap}" for name, cap in self.max_epochs.items()]
        return f"Mixture({'; '.join([*stages, *views, *caps])})"

    # ------------------------------------------------------------------------ checks

    def _read_stages(self, stages: Any) -> list[Stage]:
        found: list[Stage] = []
        try:
            pairs = [(begin, weights) for begin, weights in stages]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"a mixture must be {{source: weight}}, or stages [(0, {{...}}), ('900B', {{...}})], not {stages!r}"
            ) from error
        for number, (begin, weights) in enumerate(pairs):
            named: dict[str, Fraction] = {}
            for source, weight in _mapping(f"the weights of stage {number}", weights).items():
                name = self._name(source)
                if name in named:
                    raise ValueError(f"stage {number} names source {name!r} twice")
                named[name] = exact(f"the weight of {name!r}", weight)
            found.append(Stage(tokens_of(f"begin of stage {number}", begin), whole_weights(named)))
        begins = [stage.begin for stage in found]
        if not begins or begins != sorted({0, *begins}):
            raise ValueError(
                f"stages must begin at 0 tokens and ascend, found stages that begin at {begins}"
            )
        return found

    def _name(self, source: Any) -> str:
        """The name of a source, from its name or its folder. ValueError if two folders have the same name."""
        if not isinstance(source, str | os.PathLike) or isinstance(
            text := os.fspath(source), bytes
        ):
            raise ValueError(f"a source must be a name or a folder, not {source!r}")
        if text in self.paths:
            return text
        path = folder_of(text, Path.cwd())
        name = _plain(name_of(path))
        known = self.paths.setdefault(name, path)
        if os.path.realpath(known) != os.path.realpath(
            path
        ):  # of addresses too, which are equal as they are
            raise ValueError(
                f"two sources are called {name!r}: {known} and {path}; name them with sources={{name: folder}}"
            )
        return name

    def _known(self, parameter: str, source: Any) -> str:
        before, name = [*self.paths], self._name(source)
        if name not in before:
            raise ValueError(
                f"{parameter} names {name!r}, which is not a source of the mixture: {', '.join(before)}"
            )
        return name


def _require_compatible(sets: Mapping[str, TokenSet]) -> None:
    """ValueError if token sets have different tokenizers, or if two of them have the same documents as often."""
    tokenizers = {(ids_fingerprint(one), one.dtype, one.bos_id): name for name, one in sets.items()}
    if len(tokenizers) > 1:
        found = (
            f"{name!r} with {sets[name].tokenizer['name']}, {ids}"
            for (ids, *_), name in tokenizers.items()
        )
        raise ValueError(
            f"the sources of a mixture must have the same tokenizer, found {', '.join(found)}; prepare some of "
            "them again with the tokenizer of the others"
        )
    digests: dict[tuple[str, str], str] = {}
    for name, token_set in sets.items():
        if (same := digests.setdefault((token_set.digest, token_set.view_digest), name)) != name:
            raise ValueError(
                f"sources {same!r} and {name!r} have the same documents, {token_set.display_name}; keep only one"
            )


def ids_fingerprint(token_set: TokenSet) -> str:
    """The fingerprint of the tokenizer that gives text its ids: of a chat set, without its template and the special
    tokens that it has added. So chat and text that share a tokenizer can be mixed.
    """
    chat = token_set.tokenizer.get("chat")
    return str(token_set.tokenizer["fingerprint"] if chat is None else chat["text_fingerprint"])


def proportional(
    sources: Iterable[PathLike] | Mapping[str, PathLike], temperature: float = 1.0
) -> dict[str, float]:
    """Weights for a Mixture from the training tokens of `sources`, folders or {name: folder}, to 1 / temperature.

    With temperature 1, all sources finish their epochs together. Higher temperatures favor small sources. ValueError if
    the temperature is not positive, or if a token set has no training tokens.
    """
    named = (
        sources
        if isinstance(sources, Mapping)
        else {os.fspath(source): source for source in sources}
    )
    sets = {
        name: open_set(folder_of(os.fspath(folder), Path.cwd())) for name, folder in named.items()
    }
    return powers({name: epoch_tokens(one, "train") for name, one in sets.items()}, temperature)


def epoch_tokens(token_set: TokenSet, split: str) -> int:
    """The tokens of an epoch of a split, or of its view."""
    if token_set.view is not None:
        return token_set.view.tokens(split)
    return sum(entry.tokens for entry in token_set.split(split))


def tokens_of(name: str, amount: Any) -> int:
    """Parses a number of tokens: 900_000, 9e11, "900B", "1.5T". ValueError for anything else."""
    value = amount
    if isinstance(amount, str):
        match = re.fullmatch(
            r"(\d[\d_]*(?:\.\d+)?(?:e\d{1,2})?)([KMBT]?)", amount.strip(), re.IGNORECASE
        )
        value = (
            Fraction(match[1].replace("_", "")) * UNITS.get(match[2].upper(), 1) if match else None
        )
    value = (
        0
        if not isinstance(value, bool) and value == 0
        else exact(name, value)
        if value is not None
        else None
    )
    if value is None or value != int(value):
        raise ValueError(
            f"{name} must be a whole number of tokens, as 900_000 or '900B', not {amount!r}"
        )
    return int(value)


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name} must be {{source: ...}}, not {value!r}")
    return value or {}


def _plain(name: Any) -> str:
    if not isinstance(name, str) or not is_plain(name) or not name.isprintable():
        raise ValueError(f"a source's name must be a string without '/', not {name!r}")
    return name
