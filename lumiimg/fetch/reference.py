"""Names of images in registries, as Docker reads them.

Sections (§) are those of the OCI distribution specification 1.1; `reference` is its neighbour distribution/reference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.engine.engine import engine_word
from lumiimg.fetch.http import require_tls_or_digest

if TYPE_CHECKING:
    from lumiimg.fetch.mirrors import Mirrors

DAEMON_SCHEME = "docker-daemon://"
"""In front of the name of an image that a daemon of this machine has."""
DOCKER_HUB = "docker.io"
DEFAULT_TAG = "latest"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

# §Pulling manifests for repository and tag, reference regexp.go for the host; of digests only the common algorithm.
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REFERENCE = re.compile(
    rf"(?P<registry>(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]{{1,5}})?)"
    rf"/(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    rf"(?::(?P<tag>[a-zA-Z0-9_][a-zA-Z0-9._-]{{0,127}}))?(?:@(?P<digest>{DIGEST.pattern}))?"
)
_IN_REGISTRY = re.compile(r"(?:[^/]*[.:][^/]*|localhost)/")
"""How a name begins whose first part engines take for a registry (reference normalize.go)."""
_OF_HUB, _OF_HUB_ITSELF = re.compile(r"^index\.docker\.io/"), re.compile(r"^docker\.io/(?!.*/)")
_NAME_LIMIT = 255
"""Of registry/repository: what many clients allow (§Pulling manifests)."""
_TEXT_LIMIT = 512
"""The longest name with a tag, a digest and a scheme is shorter, so what is cut off here is not valid either way."""


@dataclass(frozen=True, slots=True)
class ImageReference:
    """Where an image is, the mirror of its registry already in its place."""

    registry: str
    """Host, or host:port; `docker.io` for Docker Hub."""
    repository: str
    tag: str | None
    """Beside a digest only a note of where that came from."""
    digest: str | None
    insecure: bool
    """Whether the registry is asked without TLS, because the user's mirror says `http://`."""

    def __str__(self) -> str:
        """Return `host/repository:tag`, or `host/repository@digest`: engines refuse both at once."""
        version = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.registry}/{self.repository}{version}"

    def require_tls_or_digest(self) -> None:
        """Raise FailedError for a tag of a registry without TLS."""
        if self.insecure:
            require_tls_or_digest(f"http://{self.registry}/{self.repository}", self.digest)


def parse_reference(text: str, mirrors: Mirrors) -> ImageReference:
    """Return what a person means by `rocm/pytorch`, `docker://host:5000/a:tag` or `a/b@sha256:…`.

    Docker Hub, its `library/` and the tag `latest` are filled in as Docker does (reference normalize.go).

    Raises BadInputError if it is not a valid image reference, or the mirror of its registry is not a registry.
    """
    text = text[:_TEXT_LIMIT]
    name = re.sub(r"^(docker|oras)://", "", text)
    if not _IN_REGISTRY.match(name):
        name = f"{DOCKER_HUB}/{name}"
    name = _OF_HUB.sub(f"{DOCKER_HUB}/", name)
    found = _parts(_OF_HUB_ITSELF.sub(f"{DOCKER_HUB}/library/", name))
    if found is None and "@" in text and (text.count("@") > 1 or not DIGEST.fullmatch(text.rpartition("@")[2])):
        # Not repeated: `user:password@host/name` is what it often is.
        raise BadInputError(
            "in an image reference, only sha256: and 64 hexadecimal digits may follow an @",
            hint=f"leave the login out: lumiimg reads ~/.netrc, the engine uses `{engine_word()} registry login`",
        )
    if found is None:
        what = f"{text!r} is not a valid image reference"
        raise BadInputError(what, hint="for example docker.io/rocm/pytorch:latest")
    registry, tag, digest = found["registry"], found["tag"], found["digest"]
    tag = tag or (None if digest else DEFAULT_TAG)
    target = mirrors.table.get(registry)
    if target is None:
        return ImageReference(registry, found["repository"], tag, digest, insecure=False)
    place = _parts(f"{re.sub(r'^https?://', '', target).rstrip('/')}/{found['repository']}")
    if place is None:
        what = "is not a registry: a host with a dot or a port, with or without http:// before it"
        raise BadInputError(what, where=f"mirror {registry!r}")
    return ImageReference(place["registry"], place["repository"], tag, digest, insecure=target.startswith("http://"))


def _parts(name: str) -> re.Match[str] | None:
    """Return the parts of a name with a registry; None if it is not a valid one."""
    found = _REFERENCE.fullmatch(name) if _IN_REGISTRY.match(name) else None
    is_short = found is not None and found.end("repository") <= _NAME_LIMIT
    return found if is_short else None
