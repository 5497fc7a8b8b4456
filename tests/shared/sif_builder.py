"""SIF images made without an engine."""

from __future__ import annotations

from pathlib import Path

from lumiimg.build.provenance import PLAN, SBOM
from lumiimg.image.sif import SifHeader, write_sif
from tests.shared.programs import squashed


def made_sif(root: Path, target: Path, plan: bytes = b"{}", bill: bytes = b"{}") -> Path:
    header = SifHeader("Bootstrap: docker\nFrom: x\n", {PLAN: plan, SBOM: bill})
    squashed(root, target, offset=header.size_bytes)
    write_sif(target, header, identity="one")
    return target
