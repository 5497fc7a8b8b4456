"""TLS for servers on loopback, with keys and certificates made once for tests."""

from __future__ import annotations

import ssl
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "fixtures" / "tls"
# openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj /CN=localhost
#     -addext subjectAltName=IP:127.0.0.1,DNS:localhost -addext basicConstraints=critical,CA:FALSE
# (rustls, which uv uses, rejects a CA certificate for a server); valid until November 2126
CERTIFICATE = _FOLDER / "localhost.pem"
"""Valid for 127.0.0.1 and localhost; the server's key is in the same file."""
ANOTHER = _FOLDER / "another.pem"
"""The same with another key, which no server uses."""


def certified() -> ssl.SSLContext:
    """Return the TLS context of a server with CERTIFICATE."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context
