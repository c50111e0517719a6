"""Mixture: several token sets by weight, in stages, with caps; checked and in one normal form.

    Mixture({"data/tokens/web": 60, "data/tokens/code": 25, "data/tokens/math": 15})
    Mixture([(0, {"data/tokens/web": 3, "data/tokens/code": 1}), ("900B", {"data/tokens/math": 1})])
    Mixture.load("mixture.toml")

A source is identified by its name: the random order of its rows depends on the name, and positions use it. If you give
only a path, the last part of the path is the name.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from tokenmill.addresses import name_of, named
from tokenmill.checks import LONGEST_ROW, one_of, whole_number
from tokenmill.feed.mixture_file import arguments_of, folder_of, read_toml
from tokenmill.feed.targets import WEIGHTS_BY, WeightsBy, weights_of_targets
from tokenmill.remote.sets import open_set
from tokenmill.rows.mixed_stream import ON_CAP, OnCap
from tokenmill.rows.segments import Stage
from tokenmill.rows.weights import exact, powers, whole_weights
from tokenmill.store.names import is_plain
from tokenmill.store.token_sets import TokenSet

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
    | max_epochs | {source: epochs} that a source may give in training, fractions allowed; or one number for all |
    | on_cap | what happens at max_epochs: "error", "retire" the source, or "spread" its tokens over the run |
    | tokens | tokens of the whole run, as 1e12 or "1T"; "spread" needs it |
    | weights_by | what weights are shares of: "tokens", or "targets", the tokens that bear loss (docs/chat.md) |
    | removed | names of sources that you took out on purpose; positions keep their cursors |

    Weights are shares of tokens and can be any positive numbers (rows/weights.py makes them whole). A stage may name
    the tokens of an input too, as ("900B", {...}, 8192): the loader's rows then have that length from its first batch
    on, and its batches as many tokens as before. Two mixtures with the same meaning are equal. Raises ValueError for
    invalid settings.
    """

    def __init__(
        self,
        weights: Weights | Sequence[tuple[Any, Weights]],
        *,
        sources: Mapping[str, PathLike] | None = None,
        views: Mapping[str, str] | None = None,
        max_epochs: Mapping[str, Any] | float | None = None,
        on_cap: OnCap = "error",
        tokens: int | float | str | None = None,
        removed: Iterable[str] = (),
        weights_by: WeightsBy = "tokens",
    ):
        self._names = _SourceNames(_folders(sources))
        stages = [(0, weights, None)] if isinstance(weights, Mapping) else _triples(weights)
        self.stages = _stages([(begin, self._named(number, some)) for number, (begin, some, _) in enumerate(stages)])
        self.seq_lens = _seq_lens(self.stages, [seq_len for *_, seq_len in stages])
        self.paths = self._names.paths()  # by name, in the order in which sources are named first
        self.views = self._views(views)
        if unused := [name for name in self.paths if all(name not in stage.weights for stage in self.stages)]:
            raise ValueError(
                f"source {unused[0]!r} has no weight in any stage; give it a weight, or leave it out and, if a run "
                f"has used it, list it in removed"
            )
        one_of("weights_by", weights_by, WEIGHTS_BY)
        if weights_by == "targets":
            self.stages = weights_of_targets(self.stages, self._open_sets())
        self.max_epochs = self._caps(max_epochs)
        one_of("on_cap", on_cap, ON_CAP)
        self.on_cap: OnCap = on_cap
        self.tokens = None if tokens is None else tokens_of("tokens", tokens)
        self.removed = self._removed(removed)
        if on_cap == "spread" and self.max_epochs and self.tokens is None:
            raise ValueError("on_cap='spread' needs the tokens of the whole run: pass tokens='1T' to the mixture")

    @classmethod
    def load(cls, path: PathLike, *, tokens: int | float | str | None = None) -> "Mixture":
        """Loads a mixture from a TOML file. Relative folders are relative to the file. A name without a slash may also
        be that of a set under data/tokens.

        `tokens`, the tokens of the whole run, overrides the file's value. Raises FileNotFoundError if there is no such
        file, and ValueError with the key that is invalid.
        """
        content = read_toml(path) | ({} if tokens is None else {"tokens": tokens})
        try:
            return cls(**arguments_of(content, Path(path).resolve().parent))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def of_one_set(cls, tokens: PathLike, view: str | None = None) -> "Mixture":
        """A token set, or a view of it, as a mixture with one source, which has no name."""
        one = object.__new__(cls)
        one.views = {} if view is None else {ONE_SET: view}
        one.stages, one.paths = (Stage(0, {ONE_SET: Fraction(1)}),), {ONE_SET: named(tokens)}
        one.max_epochs, one.on_cap, one.tokens, one.removed, one.seq_lens = {}, "error", None, (), {}
        return one

    # ------------------------------------------------------------------------ properties and variants

    @property
    def is_one_set(self) -> bool:
        """Whether this was made from one token set (`of_one_set`) and not by a user."""
        return ONE_SET in self.paths

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources, in the order that `sources=True` numbers them."""
        return tuple(self.paths)

    def __getitem__(self, source: str) -> str | Path:
        """A source's folder or address, as for RowLoader(mixture["math"], "val", epochs=1). KeyError if unknown.

        Its view, if it has one, is in `mixture.views`.
        """
        return self.paths[source]

    def at(self, tokens: int | float | str) -> "Mixture":
        """A mixture that always has the weights of one moment of the run, for example for validation.

        It names no row length; the loader's `seq_len` decides.
        """
        moment = tokens_of("tokens", tokens)
        stage = [stage for stage in self.stages if stage.begin <= moment][-1]
        return self._with(stages=(Stage(0, stage.weights),))

    def seq_len_at(self, tokens: int) -> int | None:
        """The tokens of an input that the stage at this moment of the run names; None if it names none."""
        return self.seq_lens.get([stage.begin for stage in self.stages if stage.begin <= tokens][-1])

    def resolved(self) -> "Mixture":
        """The same mixture with symbolic links in its folders resolved."""
        paths = {name: where if isinstance(where, str) else where.resolve() for name, where in self.paths.items()}
        return self._with(paths=paths)

    def lasting(self, tokens: int | float | str) -> "Mixture":
        """The same mixture for a run of this many tokens."""
        other = self._with()
        other.tokens = tokens_of("tokens", tokens)
        return other

    def _with(self, stages: tuple[Stage, ...] | None = None, paths: dict[str, str | Path] | None = None) -> "Mixture":
        other = object.__new__(Mixture)
        vars(other).update(vars(self))
        other.stages, other.paths = stages or self.stages, paths or self.paths
        other.seq_lens = {} if stages else self.seq_lens
        weighted = {name for stage in other.stages for name in stage.weights}
        other.paths = {name: path for name, path in other.paths.items() if name in weighted}
        other.max_epochs = {name: cap for name, cap in self.max_epochs.items() if name in weighted}
        other.views = {name: view for name, view in self.views.items() if name in weighted}
        return other

    @property
    def description(self) -> dict[str, Any]:
        """Everything that the order of rows depends on, except the token sets: plain strings and numbers."""
        return {
            "stages": [[begin, whole_weights(weights)] for begin, weights in self.stages],
            "max_epochs": {name: str(cap) for name, cap in sorted(self.max_epochs.items())},
            "on_cap": self.on_cap if self.max_epochs else "error",
            "tokens": self.tokens if self.max_epochs and self.on_cap == "spread" else None,
        } | ({"seq_lens": [[begin, seq_len] for begin, seq_len in self.seq_lens.items()]} if self.seq_lens else {})

    def _key(self) -> tuple[Any, ...]:
        return repr(self.description), tuple(self.paths.items()), tuple(sorted(self.views.items())), self.removed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mixture) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        stages = [f"{begin:,}: {_shares(weights)}" for begin, weights in self.stages]
        views = [f"view of {name} {view}" for name, view in self.views.items()]
        caps = [f"max_epochs of {name} {float(cap):g}" for name, cap in self.max_epochs.items()]
        return f"Mixture({'; '.join([*stages, *views, *caps])})"

    # ------------------------------------------------------------------------ checks

    def _named(self, number: int, weights: Any) -> dict[str, Fraction]:
        if not isinstance(weights, Mapping):
            raise ValueError(f"the weights of stage {number} must be {{source: weight}}, not {weights!r}")
        named: dict[str, Fraction] = {}
        for source, weight in weights.items():
            name = self._names.of(source)
            if name in named:
                raise ValueError(f"stage {number} names source {name!r} twice")
            named[name] = exact(f"the weight of {name!r}", weight)
        whole_weights(named)  # raises ValueError if a weight would round to zero
        return named

    def _views(self, views: Any) -> dict[str, str]:
        """The view of each source that has one. ValueError if two sources are the same view of one folder."""
        if views is not None and not isinstance(views, Mapping):
            raise ValueError(f"views must be {{source: view}}, not {views!r}")
        found: dict[str, str] = {}
        for source, view in (views or {}).items():
            if view is not None and (not isinstance(view, str) or not view):
                raise ValueError(f"the view of source {source!r} must be its name, not {view!r}")
            name = self._names.of(source)
            self._require_source("views", name)
            if view is not None:
                found[name] = view
        names: dict[tuple[str, str | None], str] = {}
        for name, path in self.paths.items():
            other = names.setdefault((_resolved(path), found.get(name)), name)
            if other != name:
                raise ValueError(
                    f"sources {other!r} and {name!r} are the same folder, {path}; name it once, or give them different "
                    "views"
                )
        return found

    def _open_sets(self) -> dict[str, TokenSet]:
        return {name: open_set(path).viewed(self.views.get(name)) for name, path in self.paths.items()}

    def _caps(self, max_epochs: Any) -> dict[str, Fraction]:
        if max_epochs is None:
            return {}
        if not isinstance(max_epochs, Mapping):
            max_epochs = dict.fromkeys(self.paths, max_epochs)
        caps = {self._names.of(source): exact(f"max_epochs of {source!r}", cap) for source, cap in max_epochs.items()}
        for name in caps:
            self._require_source("max_epochs", name)
        return caps

    def _require_source(self, parameter: str, name: str) -> None:
        if name not in self.paths:
            near = difflib.get_close_matches(name, self.paths, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{parameter} names {name!r}, which is not a source of the mixture{hint}")

    def _removed(self, removed: Iterable[str]) -> tuple[str, ...]:
        if isinstance(removed, str):
            raise ValueError(f"removed must be a list of names, not the string {removed!r}; write [{removed!r}]")
        if isinstance(removed, Mapping) or not isinstance(removed, Iterable):
            raise ValueError(f"removed must be a list of names, not {removed!r}")
        names = tuple(sorted({_name(name) for name in removed}))
        if both := [name for name in names if name in self.paths]:
            raise ValueError(f"source {both[0]!r} is both in the mixture and in removed")
        return names


class _SourceNames:
    """Names of sources and their folders. A user gives a name, or a folder whose last part is the name."""

    def __init__(self, sources: dict[str, str]):
        self._paths = {_name(name): folder_of(path, Path.cwd()) for name, path in sources.items()}

    def of(self, source: PathLike) -> str:
        """The name of a source, from its name or its folder. ValueError if two folders have the same name."""
        if not isinstance(source, str | os.PathLike) or isinstance(text := os.fspath(source), bytes):
            raise ValueError(f"a source must be a name or a folder, not {source!r}")
        if text in self._paths:
            return text
        path = folder_of(text, Path.cwd())
        name = _name(name_of(path))
        known = self._paths.setdefault(name, path)
        if _resolved(known) != _resolved(path):
            raise ValueError(
                f"two sources are called {name!r}: {known} and {path}; name them with sources={{name: folder}}"
            )
        return name

    def paths(self) -> dict[str, str | Path]:
        """The folder or address of each name."""
        return dict(self._paths)


def _resolved(path: str | Path) -> str:
    """A form that is equal for equal sources: the address, or the folder with symbolic links resolved."""
    return path if isinstance(path, str) else os.path.realpath(path)


def _folders(sources: Any) -> dict[str, str]:
    """{name: folder}, unresolved. ValueError for anything else."""
    if sources is not None and not isinstance(sources, Mapping):
        raise ValueError(f"sources must be {{name: folder}}, not {sources!r}")
    for name, path in (sources or {}).items():
        if not isinstance(path, str | os.PathLike):
            raise ValueError(f"the folder of source {name!r} must be a path, not {path!r}")
    return {name: os.fspath(path) for name, path in (sources or {}).items()}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not is_plain(name) or not name.isprintable():
        raise ValueError(f"a source's name must be a string without '/', not {name!r}")
    return name


def _triples(stages: Any) -> list[tuple[Any, Any, Any]]:
    """The stages, each with its row length or None. ValueError if they are not stages."""
    try:
        found = [(begin, weights, *(more or [None])) for begin, weights, *more in stages]
        return [(begin, weights, seq_len) for begin, weights, seq_len in found]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a mixture must be {{source: weight}}, or stages [(0, {{...}}), ('900B', {{...}})], not {stages!r}"
        ) from error


def _stages(pairs: list[tuple[Any, dict[str, Fraction]]]) -> tuple[Stage, ...]:
    stages = tuple(Stage(tokens_of(f"begin of stage {n}", begin), some) for n, (begin, some) in enumerate(pairs))
    if not stages or stages[0].begin:
        found = f"{stages[0].begin:,}" if stages else "no stage"
        raise ValueError(f"the first stage must begin at 0 tokens, found {found}")
    for number, (one, other) in enumerate(zip(stages, stages[1:], strict=False), 1):
        if other.begin <= one.begin:
            raise ValueError(
                f"stage {number} must begin after the stage before it, at {one.begin:,} tokens, found {other.begin:,}"
            )
    return stages


def _seq_lens(stages: tuple[Stage, ...], named: list[Any]) -> dict[int, int]:
    """The row length that each stage names, by its first token."""
    return {
        stage.begin: whole_number(f"seq_len of stage {number}", seq_len, 1, LONGEST_ROW)
        for number, (stage, seq_len) in enumerate(zip(stages, named, strict=True))
        if seq_len is not None
    }


def proportional(
    sources: Iterable[PathLike] | Mapping[str, PathLike],
    temperature: float = 1.0,
    *,
    views: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Weights for a Mixture from the training tokens of each token set, to the power of 1 / temperature.

    `sources` are folders, or {name: folder}. `views` are those of the mixture: of a source with one, the tokens of an
    epoch of its view count. With temperature 1, weights are proportional to sizes. Higher temperatures favor small
    sources. With `Mixture(proportional(sources))`, all sources finish their epochs together. Raises ValueError if the
    temperature is not positive, or if a token set has no training tokens.
    """
    named = sources if isinstance(sources, Mapping) else {os.fspath(source): source for source in sources}
    if unknown := sorted((views or {}).keys() - named.keys()):
        raise ValueError(f"views names {unknown[0]!r}, which is not one of the sources {', '.join(named)}")
    sizes = {
        name: _training_tokens(open_set(folder_of(os.fspath(folder), Path.cwd())).viewed((views or {}).get(name)))
        for name, folder in named.items()
    }
    return powers(sizes, temperature)


def _training_tokens(token_set: TokenSet) -> int:
    """The tokens of an epoch."""
    if token_set.view is not None:
        return token_set.view.tokens("train")
    return sum(entry.tokens for entry in token_set.split("train"))


def tokens_of(name: str, amount: Any) -> int:
    """Parses a number of tokens: 900_000, 9e11, "900B", "1.5T". ValueError for anything else."""
    value = amount
    if isinstance(amount, str):
        match = re.fullmatch(r"(\d[\d_]*(?:\.\d+)?(?:e\d{1,2})?)([KMBT]?)", amount.strip(), re.IGNORECASE)
        value = Fraction(match[1].replace("_", "")) * UNITS.get(match[2].upper(), 1) if match else None
    value = 0 if not isinstance(value, bool) and value == 0 else exact(name, value) if value is not None else None
    if value is None or value != int(value):
        raise ValueError(f"{name} must be a whole number of tokens, as 900_000 or '900B', not {amount!r}")
    return int(value)


def _shares(weights: Mapping[str, Fraction]) -> str:
    total = sum(weights.values())
    return ", ".join(f"{name} {float(weight / total):.2%}" for name, weight in weights.items())
