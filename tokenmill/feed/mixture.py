"""Mixture: several token sets by weight, in stages, with caps; checked and in one normal form.

    Mixture({"data/tokens/web": 60, "data/tokens/code": 25, "data/tokens/math": 15})
    Mixture([(0, {"data/tokens/web": 3, "data/tokens/code": 1}), ("900B", {"data/tokens/math": 1})])
    Mixture.load("mixture.toml")

A source is identified by its name: the random order of its rows depends on the name, and positions
use it. If you give only a path, the last part of the path is the name. One token set is a mixture
of one, whose source is called "".

Weights are shares of tokens. All rows of a run hold the same number of tokens, so weights are also
shares of rows, and of turns (interleave.py), as whole numbers: 0.6, 0.25 and 0.15 are 12, 5 and 3
of 20 turns (weights.py).
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from tokenmill.addresses import name_of, path_of
from tokenmill.checks import whole_number
from tokenmill.feed.compatible_sets import require_compatible
from tokenmill.feed.mixture_file import arguments_of, folder_of, read_toml
from tokenmill.feed.weights import exact, powers, tokens_of, whole_weights
from tokenmill.remote.token_set import DEFAULT_CACHE, CacheConfig, open_set
from tokenmill.rows.run import Stage, stage_at
from tokenmill.store.names import is_plain
from tokenmill.store.token_sets import TokenSet

PathLike = str | os.PathLike[str]
Weights = Mapping[str, Any]  # a positive number for each source
ONE_SET = ""  # the source's name if a loader reads one token set


class Mixture:
    """Token sets by weight. Pass it to RowLoader, get_batch or PackedRows instead of a token set.

    | parameter | |
    | --- | --- |
    | weights | {source: weight}; or stages [(0, {...}), ("900B", {...})] by their first token |
    | sources | {name: folder}; one that is not listed is a folder, or a name under data/tokens |
    | views | {source: view} of its token set (docs/views.md); by default all documents, once |
    | max_epochs | {source: epochs}, or a number for all, after which it retires in training |
    | removed | names of sources that you took out on purpose; positions keep their cursors |

    Weights are shares of tokens and can be any positive numbers (they are made whole), or 0
    for a source that is not drawn now. When a source retires, the others continue. Two mixtures
    with the same meaning are equal. Raises ValueError for invalid settings.
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
        self.paths: dict[str, str | Path] = {}
        for name, path in _mapping("sources", sources).items():
            self.paths[_plain(name)] = folder_of(path, Path.cwd())
        self.stages = self._read_stages([(0, weights)] if isinstance(weights, Mapping) else weights)
        chosen = {name: view for name, view in _mapping("views", views).items() if view is not None}
        self.views = self._by_source("views", chosen)
        for view in self.views.values():
            if not isinstance(view, str) or not view:
                raise ValueError(f"a view must be the name of a view, not {view!r}")
        if max_epochs is not None and not isinstance(max_epochs, Mapping):
            max_epochs = dict.fromkeys(self.paths, max_epochs)
        caps = {}
        for source, cap in (max_epochs or {}).items():
            caps[source] = whole_number(f"max_epochs of {source!r}", cap, 1)
        self.max_epochs: dict[str, int] = self._by_source("max_epochs", caps)
        if isinstance(removed, str | Mapping) or not isinstance(removed, Iterable):
            raise ValueError(f"removed must be a list of names, not {removed!r}")
        self.removed = tuple(sorted({_plain(name) for name in removed}))
        for name in self.removed:
            if name in self.paths:
                raise ValueError(f"source {name!r} is both in the mixture and in removed")

    @classmethod
    def load(cls, path: PathLike) -> "Mixture":
        """Loads a mixture from a TOML file. Folders are relative to it, or names under data/tokens.

        Raises FileNotFoundError if there is no such file, and ValueError with the key that is
        invalid.
        """
        path = path_of(path)
        content = read_toml(path)
        try:
            return cls(**arguments_of(content, path.resolve().parent))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def of(cls, tokens: "PathLike | Mixture", view: str | None = None) -> "Mixture":
        """A token set, or a view of it, as a mixture of one; a mixture as it is."""
        if isinstance(tokens, Mixture):
            return tokens
        mixture = object.__new__(cls)
        mixture.paths = {ONE_SET: folder_of(tokens, Path.cwd())}
        mixture.stages = [Stage(0, {ONE_SET: 1})]
        mixture.views = {ONE_SET: view} if view else {}
        mixture.max_epochs = {}
        mixture.removed = ()
        return mixture

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources, in the order in which `loader.row_sources` numbers them."""
        return tuple(self.paths)

    def __getitem__(self, source: str) -> str | Path:
        """A source's folder or address, as for RowLoader(mixture["math"], "val", epochs=1).

        KeyError if it is unknown.
        """
        return self.paths[source]

    def __iter__(self) -> Iterator[str]:
        """The names of the sources, so that `"math" in mixture` says whether it is one."""
        return iter(self.paths)

    def at(self, tokens: int | float | str) -> "Mixture":
        """A mixture that always has the weights of one moment of the run, as for validation."""
        moment = tokens_of("tokens", tokens)
        weights = stage_at(self.stages, moment).weights
        return Mixture(
            weights,
            sources=_those_of(weights, self.paths),
            views=_those_of(weights, self.views),
            max_epochs=_those_of(weights, self.max_epochs),
            removed=self.removed,
        )

    def open(self, cache: CacheConfig = DEFAULT_CACHE) -> dict[str, TokenSet]:
        """The token sets, with their views, by name. `cache` says where remote ones are cached.

        ValueError if two have other tokenizers, or are one set with equal views.
        """
        opened: dict[str | Path, TokenSet] = {}
        sets = {}
        for name, path in self.paths.items():
            if path not in opened:
                opened[path] = self._open_source(name, path, cache)
            sets[name] = opened[path].viewed(self.views.get(name))
        require_compatible(sets)
        return sets

    def _open_source(self, name: str, path: str | Path, cache: CacheConfig) -> TokenSet:
        try:
            return open_set(path, cache)
        except FileNotFoundError as error:
            if name == ONE_SET:
                raise
            names = ", ".join(self.names)
            raise FileNotFoundError(f"source {name!r} of {names}: {error}") from error

    def _key(self) -> tuple[Any, ...]:
        stages = [(begin, sorted(weights.items())) for begin, weights in self.stages]
        settings = [sorted(self.views.items()), sorted(self.max_epochs.items())]
        return repr((stages, settings, self.removed)), tuple(self.paths.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mixture) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        stages = [f"{begin:,}: {weights}" for begin, weights in self.stages]
        views = [f"view of {name} {view}" for name, view in self.views.items()]
        caps = [f"max_epochs of {name} {cap}" for name, cap in self.max_epochs.items()]
        facts = "; ".join([*stages, *views, *caps])
        return f"Mixture({facts})"

    def _read_stages(self, listed: Any) -> list[Stage]:
        try:
            pairs = [(begin, weights) for begin, weights in listed]
        except (TypeError, ValueError) as error:
            raise ValueError(
                "a mixture must be {source: weight}, or stages [(0, {...}), ('900B', {...})], "
                f"not {listed!r}"
            ) from error
        stages = []
        weighed: set[str] = set()
        for number, (begin, weights) in enumerate(pairs):
            shares: dict[str, Fraction] = {}
            for source, weight in _mapping(f"the weights of stage {number}", weights).items():
                name = self._name(source)
                if name in shares:
                    raise ValueError(f"stage {number} names source {name!r} twice")
                shares[name] = exact(f"the weight of {name!r}", weight, may_be_zero=True)
            weighed.update(shares)
            drawn = {name: share for name, share in shares.items() if share}
            first_token = tokens_of(f"begin of stage {number}", begin)
            stages.append(Stage(first_token, whole_weights(drawn)))
        begins = [stage.begin for stage in stages]
        if not begins or begins != sorted({0, *begins}):
            raise ValueError(
                f"stages must begin at 0 tokens and ascend, found stages that begin at {begins}"
            )
        for name in self.paths:
            if name not in weighed:
                raise ValueError(
                    f"source {name!r} has no weight; leave it out, or, if a run used it, list it "
                    "in removed"
                )
        return stages

    def _name(self, source: Any) -> str:
        """The name of a source, from its name or its folder.

        ValueError if two folders have the same name.
        """
        text = os.fspath(source) if isinstance(source, str | os.PathLike) else None
        if not isinstance(text, str):
            raise ValueError(f"a source must be a name or a folder, not {source!r}")
        if text in self.paths:
            return text
        path = folder_of(text, Path.cwd())
        name = _plain(name_of(path))
        known = self.paths.setdefault(name, path)
        # of addresses too, which are equal as they are
        if os.path.realpath(known) != os.path.realpath(path):
            raise ValueError(
                f"two sources are called {name!r}: {known} and {path}; "
                "name them with sources={name: folder}"
            )
        return name

    def _by_source(self, parameter: str, values: Mapping[Any, Any]) -> dict[str, Any]:
        """The values by the names of their sources. ValueError for others, and for one twice."""
        known = [*self.paths]
        by_source: dict[str, Any] = {}
        for source, value in values.items():
            name = self._name(source)
            if name not in known:
                raise ValueError(
                    f"{parameter} names {name!r}, which is not a source of the mixture: "
                    f"{', '.join(known)}"
                )
            if name in by_source:
                raise ValueError(f"{parameter} names source {name!r} twice")
            by_source[name] = value
        return by_source


def _those_of(weights: Weights, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in weights}


def proportional(
    sources: Iterable[PathLike] | Mapping[str, PathLike], temperature: float = 1.0
) -> dict[str, float]:
    """Weights for a Mixture from the training tokens of `sources`, folders or {name: folder}.

    With temperature 1, all sources finish their epochs together. Higher temperatures favor small
    sources: weights are tokens to the power of 1 / temperature. ValueError if the temperature is
    not positive, or if a token set has no training tokens.
    """
    named = sources if isinstance(sources, Mapping) else {os.fspath(path): path for path in sources}
    tokens = {}
    for name, path in named.items():
        opened = open_set(folder_of(os.fspath(path), Path.cwd()))
        tokens[name] = epoch_tokens(opened, "train")
    return powers(tokens, temperature)


def epoch_tokens(token_set: TokenSet, split: str) -> int:
    """The tokens of an epoch of a split, or of its view."""
    if token_set.view is not None:
        return token_set.view.tokens(split)
    return sum(entry.tokens for entry in token_set.split(split))


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name} must be {{source: ...}}, not {value!r}")
    return value or {}


def _plain(name: Any) -> str:
    if not isinstance(name, str) or not is_plain(name) or not name.isprintable():
        raise ValueError(f"a source's name must be a string without '/', not {name!r}")
    return name
