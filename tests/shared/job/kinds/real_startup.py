"""Start-up code as packages install it, by the package: path in the site folder, and text."""

from __future__ import annotations

import tomllib
from pathlib import Path

REAL: dict[str, dict[str, str]] = tomllib.loads(
    (Path(__file__).parents[3] / "fixtures/job/startup.toml").read_text(encoding="utf-8")
)
