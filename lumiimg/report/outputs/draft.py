"""What `draft` prints."""

from __future__ import annotations

from pathlib import Path

from msgspec import field

from lumiimg.definition.docker.recognition import KnownSoftware
from lumiimg.report.outputs.shape import Output, Shape


class Stage(Shape):
    """A stage of a Dockerfile."""

    label: str = field(name="name")
    """Its name, else its number."""
    line: int
    """Of its FROM, counted from 1."""


class Base(Shape):
    """The image that the first stage stands on; null for scratch."""

    image: str
    """As FROM names it."""
    name: str | None
    """In the catalogue; null where it has none."""
    near: tuple[str, ...]
    """Bases of the catalogue with other tags of that image: the nearest version first."""


class Argument(Shape):
    """One ARG."""

    name: str
    """Of it."""
    value: str | None
    """Null: without a value."""
    line: int
    """Counted from 1."""
    used: tuple[int, ...]
    """Lines that use it."""


class Step(Shape):
    """One instruction."""

    stage: str
    """Of it."""
    line: int
    """Counted from 1."""
    keyword: str = field(name="instruction")
    """`RUN`, `COPY`, …"""
    text: str
    """As it is written."""


class Architecture(Shape):
    """A variable that says for which GPUs something is compiled."""

    name: str
    """Of it."""
    line: int
    """Counted from 1."""
    gpus: tuple[str, ...]
    """`gfx942`, …; empty where it is what the base image has."""
    has_gfx90a: bool | None
    """Whether LUMI's MI250X is among them; null where that is the base's to say."""


class LeftOut(Shape):
    """What a layer cannot carry over."""

    line: int
    """Counted from 1."""
    keyword: str = field(name="instruction")
    """`ENTRYPOINT`, …"""
    what: str
    """What becomes of it."""
    ends_build: bool
    """Whether the layer's build ends there until somebody sees to it."""


class Draft(Output):
    """What a Dockerfile does, what the catalogue has of it, what a person must see to."""

    printed_by = "lumiimg draft Dockerfile --json"

    file: str
    """As it was named."""
    sha256: str
    """Of the file, in hexadecimal."""
    target: str
    """Stage that was followed."""
    stages: tuple[Stage, ...]
    """From the base to the target."""
    needed: tuple[Stage, ...] = field(name="stages_needed")
    """Other stages that files are taken from."""
    base: Base | None
    """The image that the first stage stands on; null for scratch."""
    platform: str | None
    """That FROM asks for; null where it asks for none."""
    arguments: tuple[Argument, ...]
    """In the order of the file."""
    environment: dict[str, str]
    """That the image would have."""
    steps: tuple[Step, ...]
    """From the base to the target."""
    layers: tuple[KnownSoftware, ...]
    """What was recognised."""
    architectures: tuple[Architecture, ...]
    """In the order of the file."""
    left_out: tuple[LeftOut, ...]
    """In the order of the file."""
    notes: tuple[str, ...]
    """What else was not carried over."""
    folder: Path | None
    """That was written; null without -o."""
