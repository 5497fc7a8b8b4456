"""Which image a name in a registry means now: the pull side of the OCI distribution specification 1.1.

Every body is checked against the digest that was asked for or announced before a word of it is believed. Sections (§)
are those of that specification; `image-spec` and `reference` are its neighbours opencontainers/image-spec and
distribution/reference.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlencode, urlsplit

from lumiimg.errors import BadInputError, FailedError, UndecidedError
from lumiimg.resolve.network.web import Bounds, ReplacedError, Response, Stream, Web, refuse_unproved
from lumiimg.wording import engine_word

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from lumiimg.resolve.network.mirrors import Mirrors

DAEMON_SCHEME = "docker-daemon://"
"""In front of the name of an image that a daemon of this machine has."""
DOCKER_HUB_API = "registry-1.docker.io"
"""The host that answers for docker.io. Source: distribution/reference normalize.go, beside `defaultDomain`."""
SIF_LAYER = "application/vnd.sylabs.sif.layer.v1.sif"
"""What the one layer of a SIF in a registry is. Source: `SifLayerMediaTypeV1`, apptainer internal/pkg/client/oras."""

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_IMAGES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_CONFIGS = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
_SCHEMA_1 = "application/vnd.docker.distribution.manifest.v1+"
_ACCEPT = {"Accept": ", ".join(_INDEXES + _IMAGES)}

# §Pulling manifests for repository and tag, reference regexp.go for the host; of digests only the common algorithm.
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DEFAULT_TAG = "latest"
_NAME_LIMIT = 255
"""Of registry/repository: what many clients allow (§Pulling manifests)."""
_TEXT_LIMIT = 512
"""The longest name with a tag, a digest and a scheme is shorter, so what is cut off here is none either way."""

# RFC 9110 §11.2: name=token or name="quoted string"; RFC 6750 §2.1: what a token is made of.
_BEARER = re.compile(r"(?:^|,)\s*Bearer\s+(.*)", re.IGNORECASE)
_PARAMETER = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|([^\s",]+))')
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}=*")
_CHALLENGE_LIMIT = 4096

_MANIFEST_LIMIT_BYTES = 4 << 20
"""What registries take at least (§Pushing manifests)."""
_CONFIG_LIMIT_BYTES = 8 << 20
DOCKER_HUB = "docker.io"
_TOKEN_LIMIT_BYTES = 1 << 20
_MAX_INDEXES = 2
_BLOB_LIMIT_BYTES = 1 << 50
LAYER_LIMIT_BYTES = 64 * 1024**3
_HANDLED = frozenset({401, 403, 404, 429})


@dataclass(frozen=True, slots=True)
class ImageReference:
    """Where an image is, the mirror of its registry already in its place."""

    registry: str
    """Host, or host:port; `docker.io` for Docker Hub."""
    repository: str
    tag: str | None
    """Beside a digest only a note of where that came from."""
    digest: str | None
    plain_http: bool
    """Whether the registry is talked to without TLS, because the user's mirror says `http://`."""

    def __str__(self) -> str:
        """Return `host/repository:tag`, or `host/repository@digest`: engines refuse both at once."""
        version = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.registry}/{self.repository}{version}"

    def refuse_unproved(self) -> None:
        """Raise FailedError for a tag of a registry without TLS."""
        if self.plain_http:
            refuse_unproved(f"http://{self.registry}/{self.repository}", self.digest)


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """One image for one platform, as its registry describes it."""

    reference: ImageReference
    """With the digest of this manifest."""
    digest: str
    index_digest: str | None
    """Of the index that was asked for, where it was one."""
    media_type: str
    """Of the manifest; SIF_LAYER where it carries a SIF."""
    size_bytes: int
    """Of the layers as they are stored, so compressed."""
    layers: tuple[str, ...]
    """Their digests, the lowest first."""
    config: Mapping[str, Any]
    """The image's config (image-spec config.md), its digest verified, its fields as they came. Empty for a SIF."""


def parse_reference(text: str, mirrors: Mirrors) -> ImageReference:
    """Return what a person means by `rocm/pytorch`, `docker://host:5000/a:tag` or `a/b@sha256:…`.

    Docker Hub, its `library/` and the tag `latest` are filled in as Docker does (reference normalize.go).

    Raises BadInputError if it is not a valid image reference, or the mirror of its registry is not a registry.
    """
    text = text[:_TEXT_LIMIT]
    name, *digests = re.sub(r"^(docker|oras)://", "", text).split("@")
    if len(digests) > 1 or not all(map(_DIGEST.fullmatch, digests)):
        # Not repeated: `user:password@host/name` is what it often is.
        raise BadInputError(
            "in an image reference, only sha256: and 64 hexadecimal digits may follow an @",
            hint=f"leave the login out: lumiimg reads ~/.netrc, the engine uses `{engine_word()} registry login`",
        )
    digest = next(iter(digests), None)
    tag = None if digest else _DEFAULT_TAG
    if ":" in name.rpartition("/")[2]:  # before the last slash it is that of a port
        name, _, tag = name.rpartition(":")
    registry, slash, repository = name.partition("/")
    if not slash or not _is_host(registry):
        registry, repository = DOCKER_HUB, name
    if registry in {DOCKER_HUB, f"index.{DOCKER_HUB}"}:
        registry = DOCKER_HUB
        repository = repository if "/" in repository else f"library/{repository}"
    if not _is_name(registry, repository) or not _TAG.fullmatch(_DEFAULT_TAG if tag is None else tag):
        raise BadInputError(
            f"{text!r} is not a valid image reference", hint="for example docker.io/rocm/pytorch:latest"
        )
    target = mirrors.table.get(registry)
    if target is not None:
        place, _, folder = re.sub(r"^https?://", "", target).rstrip("/").partition("/")
        repository = f"{folder}/{repository}" if folder else repository
        if not _is_host(place) or not _is_name(place, repository):
            what = "is not a registry: a host with a dot or a port, with or without http:// before it"
            raise BadInputError(what, where=f"mirror {registry!r}")
        registry = place
    plain_http = target is not None and target.startswith("http://")
    return ImageReference(registry, repository, tag, digest, plain_http)


def _is_host(text: str) -> bool:
    """Whether engines take it for a registry, not for the first part of a name (reference normalize.go)."""
    return bool({".", ":"} & {*text}) or text == "localhost"


def _is_name(registry: str, repository: str) -> bool:
    length = len(registry) + 1 + len(repository)
    return bool(length <= _NAME_LIMIT and _REGISTRY.fullmatch(registry) and _REPOSITORY.fullmatch(repository))


def resolve_image(reference: ImageReference, web: Web, *, platform: str = "linux/amd64") -> ImageManifest:
    """Return what the reference means now, for one platform (`os/architecture`, or with `/variant`).

    Raises FailedError if the registry does not have it, does not give it, or says what is not true or not understood;
    UndecidedError for an image that does not say for which platform it is.
    """
    reference.refuse_unproved()
    repository = Repository(reference, web)
    found = repository.manifest(reference.digest or reference.tag or _DEFAULT_TAG)
    top = found
    for _ in range(_MAX_INDEXES):
        if found.is_index:
            found = repository.manifest(_of_platform(found, platform))
    if found.is_index:
        raise FailedError(f"indexes of images are nested more than {_MAX_INDEXES} deep", where=top.url)
    layers = [_descriptor(layer, found.url) for layer in _list(found.document["layers"], "layers", found.url)]
    media_type = SIF_LAYER if [layer.media_type for layer in layers] == [SIF_LAYER] else found.media_type
    config = {} if media_type == SIF_LAYER else _config(repository, found)
    made_for = _platform(config)
    if made_for is None and media_type != SIF_LAYER:
        raise UndecidedError(
            f"does not state its architecture, so whether it is for {platform} is not known",
            where=found.url,
            hint="fetch it and look: lumiimg check reads its programs",
        )
    if made_for is not None and made_for.split("/")[:2] != platform.split("/")[:2]:
        raise FailedError(f"is an image for {made_for[:100]}, not for {platform}", where=found.url)
    return ImageManifest(
        reference=replace(reference, digest=found.digest),
        digest=found.digest,
        index_digest=top.digest if top.is_index else None,
        media_type=media_type,
        size_bytes=sum(layer.size_bytes for layer in layers),
        layers=tuple(layer.digest for layer in layers),
        config=config,
    )


@dataclass(frozen=True, slots=True)
class VerifiedManifest:
    """A manifest or an index, its digest verified."""

    url: str
    digest: str
    media_type: str
    document: dict[str, Any]
    body: bytes

    @property
    def config(self) -> _Descriptor:
        """Where the config of an image is."""
        return _descriptor(self.document.get("config"), self.url)

    @property
    def is_index(self) -> bool:
        return self.media_type in _INDEXES


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """A pointer to content (image-spec descriptor.md)."""

    media_type: str
    digest: str
    size_bytes: int
    platform: str | None


class Repository:
    """One repository, and the token that reads it once the registry wanted one."""

    def __init__(self, reference: ImageReference, web: Web) -> None:
        self._host = DOCKER_HUB_API if reference.registry == DOCKER_HUB else reference.registry
        self._url = f"{'http' if reference.plain_http else 'https'}://{self._host}/v2/{reference.repository}"
        self._reference = reference
        self._web = web
        self._token: str | None = None

    def manifest(self, name: str) -> VerifiedManifest:
        """Return what is there under a tag or a digest."""
        answer = self._get(f"manifests/{name}", _ACCEPT, _MANIFEST_LIMIT_BYTES)
        digest = _verified(answer, name if _DIGEST.fullmatch(name) else None)
        document = _document(answer)
        return VerifiedManifest(answer.url, digest, _media_type(answer, document), document, answer.body)

    def blob_url(self, digest: str) -> str:
        """Return where a blob is."""
        return f"{self._url}/blobs/{digest}"

    @contextmanager
    def open(
        self, url: str, bounds: Bounds, headers: Mapping[str, str], allow: Collection[int] = ()
    ) -> Iterator[Stream]:
        """Yield a blob, as web.Web.open does; where a token has expired, another is got."""
        for is_last in (False, True):
            with self._web.open(url, bounds, self._with_token(headers), {*allow, *_HANDLED}) as stream:
                if stream.status not in _HANDLED:
                    yield stream
                    return
                refusal = Response(stream.url.partition("?")[0], stream.status, stream.headers, b"")
            if is_last or not self._has_new_token(refusal):
                self._refuse(refusal)

    def pause(self, seconds: float) -> None:
        """Wait, as web.Web.pause does."""
        self._web.pause(seconds)

    def config(self, digest: str) -> dict[str, Any]:
        """Return the JSON object that is stored as a blob."""
        answer = self._get(f"blobs/{digest}", {}, _CONFIG_LIMIT_BYTES)
        _verified(answer, digest)
        return _document(answer)

    def _get(self, path: str, headers: Mapping[str, str], limit_bytes: int) -> Response:
        url = f"{self._url}/{path}"
        answer = self._ask(url, headers, limit_bytes)
        if self._has_new_token(answer):
            answer = self._ask(url, headers, limit_bytes)
        if answer.status in _HANDLED:
            self._refuse(answer)
        return answer

    def _ask(self, url: str, headers: Mapping[str, str], limit_bytes: int) -> Response:
        answer = self._web.ask(url, limit_bytes=limit_bytes, headers=self._with_token(headers), allow=_HANDLED)
        # Blobs are redirected to addresses whose query is a key to them: not for messages.
        return replace(answer, url=answer.url.partition("?")[0])

    def _with_token(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        return headers if self._token is None else {**headers, "Authorization": f"Bearer {self._token}"}

    def _has_new_token(self, answer: Response) -> bool:
        """Get a token where an answer wants one, the first or the next: they last minutes, layers may take longer.

        Only the registry's own word for where it is counts: the login goes there.
        """
        if answer.status != 401 or not self._is_from_registry(answer):
            return False
        self._token = self._new_token(answer)
        return True

    def _is_from_registry(self, answer: Response) -> bool:
        return urlsplit(answer.url).netloc.lower() == self._host.lower()

    def _new_token(self, refusal: Response) -> str:
        """Return a token, for the login of the registry in ~/.netrc or else for everyone.

        Source: distribution docs/content/spec/auth/token.md.
        """
        challenge = _BEARER.search(refusal.headers.get("www-authenticate", "")[:_CHALLENGE_LIMIT])
        if challenge is None:  # Basic: the login in ~/.netrc, if there is one, was shown with the question
            self._refuse(refusal)
        said: dict[str, str] = {}
        for key, quoted, bare in _PARAMETER.findall(challenge[1]):
            said.setdefault(key.lower(), quoted or bare)  # a second challenge in the same header may follow
        realm = said.get("realm", "")
        if not re.fullmatch(r"https://[!-~]+" if self._url.startswith("https") else r"https?://[!-~]+", realm):
            raise FailedError(
                f"asks for a token from {realm[:200]!r}, which lumiimg does not contact", where=refusal.url
            )
        query = {"scope": f"repository:{self._reference.repository}:pull"}
        query |= {key: said[key] for key in ("service", "scope") if key in said}
        answer = self._web.ask(
            f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}",
            limit_bytes=_TOKEN_LIMIT_BYTES,
            login=self._url,
            allow=_HANDLED,
        )
        if answer.status in {401, 403, 429}:
            self._refuse(replace(answer, url=refusal.url))
        document = _document(replace(answer, url=realm.partition("?")[0]))
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise FailedError("gave no token", where=realm.partition("?")[0])
        return token

    def _refuse(self, answer: Response) -> NoReturn:
        """Raise what a status means (§Error codes)."""
        registry = self._reference.registry
        if answer.status == 429:
            wait = answer.headers.get("retry-after", "")
            again = f"in {wait} s" if re.fullmatch(r"[0-9]{1,6}", wait) else "later"
            raise FailedError(
                f"the rate limit of {registry} is reached",
                where=answer.url,
                hint=f"try again {again}, name a login for {self._host} in ~/.netrc, or a mirror "
                f"(--mirror {registry}=http://HOST:PORT)",
            )
        if answer.status == 404:
            raise ReplacedError(
                "no such image or tag", where=answer.url, hint=f"look up the name and the tags of {self._reference}"
            )
        if not self._is_from_registry(answer):
            raise FailedError(f"the server answers {answer.status}", where=answer.url)
        raise FailedError(
            "needs a login, or there is no such image",
            where=answer.url,
            hint=f"give lumiimg a login for machine {self._host} in ~/.netrc (it goes nowhere without TLS), "
            f"and the engine one with `{engine_word()} registry login --username NAME docker://{registry}`",
        )


def _verified(answer: Response, asked: str | None) -> str:
    """Return the digest of a body, after comparing it with what was asked for and what the registry announced.

    An announced digest of another algorithm is passed over (§Pulling manifests: it MAY differ).
    """
    digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
    announced = answer.headers.get("docker-content-digest", "")
    for said in (asked, announced if announced.startswith("sha256:") else None):
        if said not in {None, digest}:
            raise FailedError(
                f"has another digest: it is {digest}, not {said}"[:300],
                where=answer.url,
                hint="it was changed or broken on its way; nothing of it was used",
            )
    return digest


def _document(answer: Response) -> dict[str, Any]:
    try:
        value = json.loads(answer.body.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise FailedError("is not the JSON that a registry sends", where=answer.url) from error
    if not isinstance(value, dict):
        raise FailedError("is JSON, but not the object that a registry sends", where=answer.url)
    return value


def _no_number(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which only Python takes for JSON."""
    raise ValueError(name)


def _media_type(answer: Response, document: dict[str, Any]) -> str:
    """Return which of the types that we understand it is, on which header, word and content have to agree.

    They decide what the bytes mean: one document that is an image to one reader and an index to another is an attack
    (CVE-2021-41190; §Pulling manifests).
    """
    header = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    word = document.get("mediaType")
    said = [kind for kind in (word, header if header in _INDEXES + _IMAGES else None) if kind is not None]
    if document.get("schemaVersion") == 1 or header.startswith(_SCHEMA_1):
        raise FailedError(
            "is a manifest of schema 1, which has no digests to rely on",
            where=answer.url,
            hint="push the image again with a current engine, or name another tag",
        )
    kinds = _INDEXES if "manifests" in document else _IMAGES
    agree = all(kind in kinds and kind == said[0] for kind in said)
    if ("manifests" in document) == ("layers" in document) or not agree:
        named = " and ".join(dict.fromkeys(str(kind)[:100] for kind in said)) or "of no known type"
        raise FailedError(f"is neither an image nor an index of images ({named})", where=answer.url)
    return str(said[0]) if said else kinds[0]


def _of_platform(index: VerifiedManifest, platform: str) -> str:
    """Return the digest of what an index has for a platform; or of the only one for which it names none."""
    listed = [_descriptor(item, index.url) for item in _list(index.document["manifests"], "manifests", index.url)]
    fitting = [item for item in listed if item.platform == platform]
    unnamed = [item for item in listed if item.platform is None]
    if not fitting and len(unnamed) == 1:
        fitting = unnamed
    if not fitting:
        # BuildKit files its attestations under unknown/unknown.
        there = sorted({item.platform or "one without a platform" for item in listed} - {"unknown/unknown"})
        raise FailedError(
            f"has no image for {platform}; there is: {', '.join(there)[:300] or 'none'}",
            where=index.url,
            hint="name a tag that was built for it",
        )
    return fitting[0].digest


def _descriptor(value: object, where: str) -> _Descriptor:
    match value:
        case {"mediaType": str() as media_type, "digest": str() as digest, "size": int() as size_bytes, **rest} if (
            _DIGEST.fullmatch(digest) and 0 <= size_bytes < _BLOB_LIMIT_BYTES and not isinstance(size_bytes, bool)
        ):
            return _Descriptor(media_type, digest, size_bytes, _platform(rest.get("platform")))
    raise FailedError("names content without a type, a sha256 digest and a size", where=where)


def _list(value: object, name: str, where: str) -> list[object]:
    if not isinstance(value, list):
        raise FailedError(f"{name} is not a list", where=where)
    return value


def _platform(value: object) -> str | None:
    """Return `os/architecture[/variant]` of an object that has such keys: an index's platform, an image's config."""
    match value:
        case {"os": str() as system, "architecture": str() as architecture, **rest}:
            variant = rest.get("variant")
            return f"{system}/{architecture}" + (f"/{variant}" if isinstance(variant, str) and variant else "")
    return None


def _config(repository: Repository, image: VerifiedManifest) -> dict[str, Any]:
    if image.config.media_type not in _CONFIGS:
        raise FailedError(f"holds no image but {image.config.media_type[:100]}", where=image.url)
    return repository.config(image.config.digest)
