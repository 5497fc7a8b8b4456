"""The JSON of `explain IMAGE` beside what is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lumiimg.check.static.boundary import Boundary


def json_keys(boundary: Boundary) -> dict[str, Any]:
    """Return the keys of the JSON beside the attributes of the account."""
    return {
        "plugin": boundary.static.path.plugin,
        "glibc": {"image": boundary.glibc, "host": boundary.host_glibc},
        "margins": [
            {
                "library": margin.library,
                "from": _side(of_host=margin.of_host),
                "provider": margin.provider,
                "provider_from": _side(of_host=margin.provider_of_host),
                "need": f"{margin.family}_{margin.need}",
                "have": f"{margin.family}_{margin.have}",
            }
            for margin in boundary.margins
        ],
        "notes": boundary.manifest.notes if boundary.manifest else (),
    }


def _side(*, of_host: bool) -> str:
    return "host" if of_host else "image"
