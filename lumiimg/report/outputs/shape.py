"""What all kinds of output, and the shapes in them, have in common."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct


class Shape(Struct, kw_only=True):
    """A JSON object: docstrings of the class and of its fields are the descriptions in the schema.

    A field that has another name in the code that it comes from is called as there, with the name in JSON beside it:
    `origin: str = field(name="from")`. A key that may be absent is `X | UnsetType = UNSET`.
    """


class Output(Shape):
    """A kind of output; it is called as its class, in small letters with hyphens."""

    printed_by: ClassVar[str]
    """The commands, or the file."""
    number: ClassVar[int] = 1
    """Counts up when a reader of the old one would be misled; docs/reference/json.md says when that is."""
    number_key: ClassVar[str] = "schema"
    document: ClassVar[type | None] = None
    """Of a file that another room writes: its type. What has its default is left out of it."""
