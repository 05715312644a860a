"""Texts that users give: Python's may hold halves of characters, which no encoding can write."""

from __future__ import annotations

from octavo.base.errors import InvalidRequestError


def check_unicode(text: str, field: str) -> None:
    """Raise InvalidRequestError naming the field if the text holds a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{field} is not valid Unicode: character {error.start} is half of one, a lone surrogate "
            f"(U+{ord(text[error.start]):04X})",
            field=field,
        ) from error
