"""Servers on loopback that speak TLS."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from tests.shared.programs import needs


def certified(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Return what a server speaks TLS by, as 127.0.0.1 and localhost, and the certificate that vouches for it."""
    needs("openssl")
    key, certificate = folder / "key", folder / "certificate"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    # rustls, which uv has, takes no CA for a server
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*words.split(), *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
