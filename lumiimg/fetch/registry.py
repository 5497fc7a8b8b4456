"""Image references as Docker reads them, and images in registries: the pull side of the OCI distribution spec 1.1.

Every body is compared with the requested or announced digest before it is used. Sections (§) are those of that
specification; `image-spec` and `reference` are opencontainers/image-spec and distribution/reference.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from lumiimg.core.errors import BadInputError, FailedError, shortened
from lumiimg.engine.engine import engine_word
from lumiimg.fetch.http import Bounds, Http, ReplacedError, Response, require_tls_or_digest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from lumiimg.fetch.mirrors import Mirrors

_T = TypeVar("_T")
DAEMON_SCHEME = "docker-daemon://"
"""Prefix of the name of an image that a daemon on this machine has."""
DOCKER_HUB = "docker.io"
DEFAULT_TAG = "latest"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

# Repository and tag: §Pulling manifests; host: reference regexp.go; digests: only the common algorithm.
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REFERENCE = re.compile(
    rf"(?P<registry>(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]{{1,5}})?)"
    rf"/(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    rf"(?::(?P<tag>[a-zA-Z0-9_][a-zA-Z0-9._-]{{0,127}}))?(?:@(?P<digest>{DIGEST.pattern}))?"
)
_IN_REGISTRY = re.compile(r"(?:[^/]*[.:][^/]*|localhost)/")
"""Beginning of a name whose first part engines read as a registry (reference normalize.go)."""
_HUB_INDEX, _HUB_SHORT_NAME = re.compile(r"^index\.docker\.io/"), re.compile(r"^docker\.io/(?!.*/)")
_NAME_LIMIT = 255
"""Longest registry/repository that many clients allow (§Pulling manifests)."""
_TEXT_LIMIT = 512
"""Longer than any valid name with tag, digest and scheme, so a text that is cut off here is not valid either way."""
DOCKER_HUB_API = "registry-1.docker.io"
"""The host that serves docker.io. Source: distribution/reference normalize.go, beside `defaultDomain`."""
LAYER_LIMIT_BYTES = 64 * 1024**3

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_IMAGES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_CONFIGS = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
_ACCEPT = {"Accept": ", ".join(_INDEXES + _IMAGES)}
_MANIFEST_LIMIT_BYTES = 4 << 20
"""Size that registries accept at least (§Pushing manifests)."""
_CONFIG_LIMIT_BYTES = 8 << 20
_TOKEN_LIMIT_BYTES = 1 << 20
_PLATFORM = "linux/amd64"
"""Platform of the machines of all sites."""
_HANDLED = frozenset({401, 403, 404, 429})

# RFC 9110 §11.2: name=token or name="quoted string"; RFC 6750 §2.1: the characters of a token.
_BEARER = re.compile(r"(?:^|,)\s*Bearer\s+(.*)", re.IGNORECASE)
_PARAMETER = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|([^\s",]+))')
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}=*")
_CHALLENGE_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class ImageReference:
    """Location of an image, with the mirror already in place of its registry."""

    registry: str
    """Host, or host:port; `docker.io` for Docker Hub."""
    repository: str
    tag: str | None
    """Beside a digest, only a note of where the digest came from."""
    digest: str | None
    insecure: bool
    """Whether the registry is contacted without TLS, because the user's mirror is `http://`."""

    def __str__(self) -> str:
        """Return `host/repository:tag`, or `host/repository@digest`: engines refuse both at once."""
        version = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.registry}/{self.repository}{version}"

    def require_tls_or_digest(self) -> None:
        """Raise FailedError for a tag of a registry without TLS."""
        if self.insecure:
            require_tls_or_digest(f"http://{self.registry}/{self.repository}", self.digest)


def parse_reference(text: str, mirrors: Mirrors) -> ImageReference:
    """Return the image that a person means by `rocm/pytorch`, `docker://host:5000/a:tag` or `a/b@sha256:…`.

    Docker Hub, its `library/` and the tag `latest` are filled in as Docker does (reference normalize.go).

    Raises BadInputError if it is not a valid image reference, or the mirror of its registry is not a registry.
    """
    text = text[:_TEXT_LIMIT]
    name = text.removeprefix("docker://")
    if not _IN_REGISTRY.match(name):
        name = f"{DOCKER_HUB}/{name}"
    name = _HUB_INDEX.sub(f"{DOCKER_HUB}/", name)
    found = _parts(_HUB_SHORT_NAME.sub(f"{DOCKER_HUB}/library/", name))
    if found is None and "@" in text and (text.count("@") > 1 or not DIGEST.fullmatch(text.rpartition("@")[2])):
        # Not quoted in the message: it is often `user:password@host/name`.
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
        what = "is not a registry: a host with a dot or a port is needed; http:// before it is optional"
        raise BadInputError(what, where=f"mirror {registry!r}")
    return ImageReference(place["registry"], place["repository"], tag, digest, insecure=target.startswith("http://"))


def _parts(name: str) -> re.Match[str] | None:
    """Return the parts of a name that begins with a registry; None if the name is not valid."""
    found = _REFERENCE.fullmatch(name) if _IN_REGISTRY.match(name) else None
    is_short = found is not None and found.end("repository") <= _NAME_LIMIT
    return found if is_short else None


# -- contents of a registry --


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A pointer to content (image-spec descriptor.md)."""

    media_type: str
    digest: Annotated[str, msgspec.Meta(pattern=rf"^{DIGEST.pattern}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)]
    platform: dict[str, Any] | None = None


class Document(msgspec.Struct, frozen=True, rename="camel"):
    """A manifest or an index (image-spec manifest.md, image-index.md)."""

    schema_version: int
    media_type: str | None = None
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] | None = None
    manifests: tuple[Descriptor, ...] | None = None


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """A manifest of a registry, its digest verified: an image for one platform, or an index of images."""

    repository: Repository
    """The repository it came from."""
    url: str
    digest: str
    media_type: str
    document: Document
    body: bytes
    index_digest: str | None = None
    """Digest of the index, if the reference named one."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The image's config (image-spec config.md), its digest verified."""

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """Layers, lowest first."""
        return self.document.layers or ()


def resolve_image(reference: ImageReference, http: Http) -> ImageManifest:
    """Return the image that the reference stands for now, for the platform of all sites.

    Raises FailedError if the registry does not have it, refuses it, or sends something wrong or not understood.
    """
    reference.require_tls_or_digest()
    repository = Repository(reference, http)
    image = top = repository.manifest(reference.digest or reference.tag or DEFAULT_TAG)
    if top.document.manifests is not None:
        image = replace(repository.manifest(_platform_digest(top.url, top.document.manifests)), index_digest=top.digest)
    if image.document.manifests is not None:
        raise FailedError("is an index of image indexes", where=top.url, hint="name an image that is in one of them")
    return replace(image, config=repository.config(image))


class Repository:
    """One repository, with the token for reading it once the registry has required one."""

    def __init__(self, reference: ImageReference, http: Http) -> None:
        self._host = DOCKER_HUB_API if reference.registry == DOCKER_HUB else reference.registry
        self._url = f"{'http' if reference.insecure else 'https'}://{self._host}/v2/{reference.repository}"
        self.reference = reference
        self._http = http
        self._token: dict[str, str] = {}
        """The header with the token; empty until there is one."""

    def manifest(self, name: str) -> ImageManifest:
        """Return the manifest of a tag or a digest."""
        answer = self._get(f"manifests/{name}", _ACCEPT, _MANIFEST_LIMIT_BYTES)
        digest = _verified(answer, name if DIGEST.fullmatch(name) else None)
        document = _decoded(answer, Document)
        return ImageManifest(self, answer.url, digest, _media_type(answer, document), document, answer.body)

    def config(self, image: ImageManifest) -> dict[str, Any]:
        """Return the config of an image. Raises FailedError unless the image is for the platform of all sites."""
        found = image.document.config
        if found is None or found.media_type not in _CONFIGS:
            holds = found.media_type[:100] if found else "missing"
            raise FailedError(f"is not an image: its config is {holds}", where=image.url)
        answer = self._get(f"blobs/{found.digest}", {}, _CONFIG_LIMIT_BYTES)
        _verified(answer, found.digest)
        config = _decoded(answer, dict[str, Any])
        if not config.get("architecture"):
            what = f"does not state its architecture, so whether it is for {_PLATFORM} is not known"
            hint = f"fetch it with `{engine_word()} pull`, then run lumiimg check, which reads its programs"
            raise FailedError(what, where=image.url, hint=hint)
        if (made_for := _platform(config)) != _PLATFORM:
            raise FailedError(f"is an image for {made_for[:100]}, not for {_PLATFORM}", where=image.url)
        return config

    def blob_url(self, digest: str) -> str:
        """Return the address of a blob by its digest."""
        return f"{self._url}/blobs/{digest}"

    @contextmanager
    def open(
        self, url: str, bounds: Bounds, headers: Mapping[str, str], allow: Collection[int] = ()
    ) -> Iterator[Response]:
        """Yield a response as `Http.open` does, with a token if one is required; an expired token is renewed."""
        for is_last in (False, True):
            with self._http.open(url, bounds, {**headers, **self._token}, {*allow, *_HANDLED}) as answer:
                # Blobs are redirected to addresses whose query is a key, which must not be in messages.
                answer = replace(answer, url=answer.url.partition("?")[0])  # noqa: PLW2901
                if answer.status not in _HANDLED:
                    yield answer
                    return
            if is_last or not self._renew_token(answer):
                self._refuse(answer)

    def _get(self, path: str, headers: Mapping[str, str], limit_bytes: int) -> Response:
        with self.open(f"{self._url}/{path}", Bounds(limit_bytes, plain=True), headers) as answer:
            return answer.whole()

    def _renew_token(self, refusal: Response) -> bool:
        """Get a token if the registry requires one, with its login in ~/.netrc or anonymously; return whether it did.

        Tokens last minutes, layers may take longer. Only the registry may name the token server: that gets the login.
        Source: distribution docs/content/spec/auth/token.md.
        """
        challenge = _BEARER.search(refusal.headers.get("www-authenticate", "")[:_CHALLENGE_LIMIT])
        if refusal.status != 401 or not self._is_from_registry(refusal) or challenge is None:
            return False  # if it requires Basic, the request had the login of ~/.netrc
        parameters: dict[str, str] = {}
        for key, quoted, bare in _PARAMETER.findall(challenge[1]):
            parameters.setdefault(key.lower(), quoted or bare)  # a second challenge in the same header may follow
        realm = parameters.get("realm", "")
        if not re.fullmatch(r"https://[!-~]+" if self._url.startswith("https") else r"https?://[!-~]+", realm):
            what = f"asks for a token from {realm[:200]!r}, which lumiimg does not contact"
            raise FailedError(what, where=refusal.url)
        query = {"scope": f"repository:{self.reference.repository}:pull"}
        query |= {key: parameters[key] for key in ("service", "scope") if key in parameters}
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
        with self._http.open(url, Bounds(_TOKEN_LIMIT_BYTES, plain=True), {}, _HANDLED, self._url) as response:
            answer = response.whole()
        if answer.status in {401, 403, 429}:
            self._refuse(replace(answer, url=refusal.url))
        answer = replace(answer, url=realm.partition("?")[0])
        found = _decoded(answer, dict[str, Any])
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise FailedError("returned no valid token", where=answer.url)
        self._token = {"Authorization": f"Bearer {token}"}
        return True

    def _is_from_registry(self, answer: Response) -> bool:
        return urlsplit(answer.url).netloc.lower() == self._host.lower()

    def _refuse(self, answer: Response) -> NoReturn:
        """Raise the error for a status (§Error codes)."""
        registry = self.reference.registry
        if answer.status == 429:
            hint = f"try later, name a login for {self._host} in ~/.netrc, or a mirror (--mirror {registry}=URL)"
            raise FailedError(f"the rate limit of {registry} is reached", where=answer.url, hint=hint)
        if answer.status == 404:
            hint = f"look up the name and the tags of {self.reference}"
            raise ReplacedError("no such image or tag", where=answer.url, hint=hint)
        if not self._is_from_registry(answer):
            raise FailedError(f"the server answers {answer.status}", where=answer.url)
        hint = (
            f"put a login for machine {self._host} into ~/.netrc for lumiimg (it is sent only with TLS), and give the "
        )
        hint += f"engine one with `{engine_word()} registry login --username NAME docker://{registry}`"
        raise FailedError("needs a login, or there is no such image", where=answer.url, hint=hint)


def _verified(answer: Response, asked: str | None) -> str:
    """Return the digest of a body, after comparing it with the requested and the announced digest.

    An announced digest of another algorithm is ignored (§Pulling manifests: it MAY differ).
    """
    digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
    announced = answer.headers.get("docker-content-digest", "")
    for expected in (asked, announced if announced.startswith("sha256:") else None):
        if expected not in {None, digest}:
            what = f"has the wrong digest: it is {digest}, not {expected}"[:300]
            hint = "it was changed or damaged in transit; none of it was used"
            raise FailedError(what, where=answer.url, hint=hint)
    return digest


def _decoded(answer: Response, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        what = f"is not valid JSON from a registry: {error}"
        raise FailedError(shortened(what), where=answer.url) from error


def _media_type(answer: Response, document: Document) -> str:
    """Return the media type, on which the header, the document's field and its content must agree.

    It decides how the bytes are read: a document that is an image to one reader and an index to another is an attack
    (CVE-2021-41190; §Pulling manifests). A manifest of schema 1 has no digests to rely on.
    """
    header = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    media_types = {kind for kind in (document.media_type, header if header in _INDEXES + _IMAGES else None) if kind}
    kinds = _IMAGES if document.manifests is None else _INDEXES
    is_one = (document.manifests is None) != (document.layers is None) and document.schema_version == 2
    if not is_one or len(media_types) > 1 or not media_types <= {*kinds}:
        named = " and ".join(sorted(kind[:100] for kind in media_types)) or "of unknown type"
        raise FailedError(f"is neither an image nor an index of images ({named})", where=answer.url)
    return media_types.pop() if media_types else kinds[0]


def _platform_digest(url: str, images: tuple[Descriptor, ...]) -> str:
    """Return the digest of the image that an index has for our platform."""
    fitting = [image for image in images if image.platform is None or _platform(image.platform) == _PLATFORM]
    if not fitting:
        # BuildKit files its attestations under unknown/unknown
        there = sorted({_platform(image.platform) for image in images if image.platform} - {"unknown/unknown"})
        what = f"has no image for {_PLATFORM}; there is: {', '.join(there)[:300] or 'none'}"
        raise FailedError(what, where=url, hint="name a tag that was built for it")
    # if an entry names no platform, its config does
    return min(fitting, key=lambda image: image.platform is None).digest


def _platform(value: Mapping[str, Any]) -> str:
    """Return `os/architecture` of an object that has such keys: an index's platform, an image's config."""
    return "/".join(f"{value.get(key, '?')}" for key in ("os", "architecture"))
