"""Logins for servers: what ~/.netrc has for exactly the host that is asked, and never without TLS."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from urllib.parse import quote, urlsplit

from lumiimg.core.files import open_regular

_NETRC_LIMIT_BYTES = 1 << 20


def login_for(url: str) -> tuple[str, str] | None:
    """Return the login that ~/.netrc, or the file that NETRC names, has for exactly this host; never without TLS."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        return None
    try:
        with open_regular(os.environ.get("NETRC") or Path.home() / ".netrc") as file:
            if os.fstat(file.fileno()).st_size > _NETRC_LIMIT_BYTES:
                return None
            known = netrc.netrc(f"/proc/self/fd/{file.fileno()}").hosts
    except (OSError, ValueError, RuntimeError, netrc.NetrcParseError):
        return None
    # under the name `default` stands what would go to every host
    found = next((known[name] for name in known if name.lower() == parts.hostname and name != "default"), None)
    return None if found is None else (found[0] or found[1], found[2])


def with_login(url: str) -> str:
    """Return an address with its login in it, as uv takes one: it then goes to no other host, scheme or port."""
    if (login := login_for(url)) is None:
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{':'.join(quote(word, safe='') for word in login)}@{rest}"
