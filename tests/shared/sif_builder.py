"""Images of one layer, without an engine."""

from __future__ import annotations

from pathlib import Path

from lumiimg.build.provenance import PLAN, SBOM
from lumiimg.image import sif_writer
from tests.shared.programs import squashed


def made_sif(root: Path, target: Path, plan: bytes = b"{}", bill: bytes = b"{}") -> Path:
    front = sif_writer.Front("Bootstrap: docker\nFrom: x\n", {PLAN: plan, SBOM: bill})
    squashed(root, target, offset=front.size_bytes)
    sif_writer.write_front(target, front, identity="one")
    return target
