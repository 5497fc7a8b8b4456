"""What an image says of itself: its config (OCI image-spec `config.md`; Docker's has the same fields)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lumiimg.image.oci.digest import Digest
from lumiimg.image.oci.document import a_list, a_text, an_object


@dataclass(frozen=True, slots=True)
class Config:
    """The parts of it that say what is in the image."""

    architecture: str | None
    """As Go calls it: `amd64`."""
    environment: dict[str, str]
    labels: dict[str, str]
    layers: tuple[Digest, ...]
    """Of their unpacked content, the lowest first."""


def config_of(document: dict[str, Any], where: str) -> Config:
    """Return the checked config. Raises ImageError."""
    run = an_object(document.get("config"), "config", where)
    variables = (a_text(item, "config.Env", where).partition("=") for item in a_list(run.get("Env"), "Env", where))
    labels = an_object(run.get("Labels"), "config.Labels", where)
    root = an_object(document.get("rootfs"), "rootfs", where)
    return Config(
        architecture=a_text(document.get("architecture"), "architecture", where) or None,
        environment={name: value for name, equals, value in variables if name and equals},
        labels={name: a_text(value, "config.Labels", where) for name, value in labels.items()},
        layers=tuple(Digest.parse(item, where) for item in a_list(root.get("diff_ids"), "diff_ids", where)),
    )
