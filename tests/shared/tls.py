"""Servers on loopback that speak TLS, by keys and certificates that were made once for tests."""

from __future__ import annotations

import ssl
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "fixtures" / "tls"
# openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj /CN=localhost
#     -addext subjectAltName=IP:127.0.0.1,DNS:localhost -addext basicConstraints=critical,CA:FALSE
# (rustls, which uv has, takes no CA for a server); valid until November 2126
CERTIFICATE = _FOLDER / "localhost.pem"
"""Vouches for 127.0.0.1 and localhost; the server's key is in the same file."""
ANOTHER = _FOLDER / "another.pem"
"""The same by another key: it vouches for no server."""


def certified() -> ssl.SSLContext:
    """Return what a server speaks TLS by, as CERTIFICATE vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context
