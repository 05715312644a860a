"""Unknown names: say what was meant."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from octavo.base.errors import UnsupportedError

_T = TypeVar("_T")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, or None if nothing is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return an error message for an unknown `name` that proposes the nearest known one."""
    guess = nearest(name, known)
    return f"unknown {what} {name!r}" + (f"; did you mean {guess!r}?" if guess else "")


def checked_names(what: str, refused: Mapping[str, str]) -> Callable[[type[_T]], type[_T]]:
    """Make a keyword-only dataclass refuse unknown argument names with a TypeError that names the nearest one.

    refused: names known elsewhere and why they are not taken here; one that is given and not None is an UnsupportedError.
    """

    def decorate(cls: type[_T]) -> type[_T]:
        original = cls.__init__
        known = [field.name for field in fields(cls)]  # pyright: ignore[reportArgumentType]

        @functools.wraps(original)
        def checked_init(self: _T, **kwargs: Any) -> None:
            for name in [name for name in kwargs if name not in known]:
                if name not in refused:
                    raise TypeError(unknown_name(what, name, known))
                if kwargs.pop(name) is not None:
                    raise UnsupportedError(f"{name}: {refused[name]}", field=name)
            original(self, **kwargs)

        cls.__init__ = checked_init
        return cls

    return decorate
