"""The loaders behind `get_batch`: one for each distinct set of arguments, and one state for all of them."""

from collections.abc import Callable

from tokenmill.position import VERSION


class KeptLoaders:
    """Loaders that `make(**arguments)` makes, kept by their arguments.

    Loaded positions wait until the loader that they belong to is asked for.
    """

    def __init__(self, make: Callable):
        self._make = make
        self._loaders: dict[tuple, object] = {}
        self._waiting: list[dict] = []

    def get(self, **arguments):
        """The loader of these arguments; a new one goes to the position that waits for it."""
        key = tuple(sorted((name, str(value)) for name, value in arguments.items()))
        if key not in self._loaders:
            loader = self._make(**arguments)
            self._resume(loader)
            self._loaders[key] = loader
        return self._loaders[key]

    def state_dict(self) -> dict:
        return {"version": VERSION, "loaders": [x.state_dict() for x in self._loaders.values()] + self._waiting}

    def load_state_dict(self, state: dict) -> None:
        """ValueError for a state that `state_dict` did not make."""
        if state.get("version") != VERSION or not isinstance(state.get("loaders"), list):
            raise ValueError(
                f"expected what data.state_dict() returned, version {VERSION}, found {state.get('version')!r}"
            )
        self._loaders.clear()
        self._waiting[:] = state["loaders"]

    def _resume(self, loader) -> None:
        """Gives a new loader the loaded position of its split, the one with its settings where there are several."""
        candidates = [position for position in self._waiting if position["split"] == loader.config.split]
        if not candidates:
            return
        fitting = [position for position in candidates if loader.identity.items() <= position.items()]
        position = (fitting or candidates)[0]
        loader.load_state_dict(position)  # refuses, with both values, where none fits
        self._waiting.remove(position)
