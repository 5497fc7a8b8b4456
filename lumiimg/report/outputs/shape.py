"""What all kinds of output, and the shapes in them, have in common."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct


class Text(str):
    """Printed as its text, whatever it is in the code that it comes from: a need, a version."""

    __slots__ = ()


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
    made_of: ClassVar[type | None] = None
    """The type of a room that is printed as it is."""
    omits: ClassVar[bool] = False
    """Whether what has its default is left out, as in a file that another room writes."""
