"""`lumiimg.lock`: a lock as a file (TOML), its Python part in the shape of PEP 751.

The file names what it was made from, so that it can be made again; what is built from it are the digests alone. Layers
are not in the file: they are found in the catalogue, and must be the same by digest.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from msgspec import structs

from lumiimg import __version__
from lumiimg.catalog.layers import AGENTS, NAME, SHA256, Layer, read_row
from lumiimg.catalog.toml_table import LONG_FAULT, Table, read_limited
from lumiimg.decode import DecodeError, encode
from lumiimg.errors import BadInputError, MissingHereError, RefusedError, shortened
from lumiimg.fabric.path import Fabric
from lumiimg.fetch.mirrors import Mirrors, validated_url
from lumiimg.fetch.reference import parse_reference
from lumiimg.files import file_sha256, open_regular
from lumiimg.resolve.arguments import LONGEST
from lumiimg.resolve.bootstrap import LockedBootstrap, choose_bootstrap
from lumiimg.resolve.image_base import LOCAL_AGENTS, foreign_layer
from lumiimg.resolve.lock import STAGED_FILE, Lock, LockedLayer, LockedSource
from lumiimg.resolve.lock_agreement import refuse_disagreement, twice
from lumiimg.resolve.own_requirements import OwnPackages
from lumiimg.resolve.python_target import PythonTarget
from lumiimg.resolve.request import Request
from lumiimg.resolve.requirement_files import OwnRequirement, requirement_of
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.stack import OWN_PACKAGES
from lumiimg.secret import hidden
from lumiimg.toml import TomlError, parse_toml

if TYPE_CHECKING:
    from lumiimg.catalog.catalogue import Catalogue

FORMAT = 1
"""Of the file; raised when an older lumiimg could not read a newer file rightly."""
_SIZE_LIMIT_BYTES = 2 * 1024 * 1024
_HEAD_BYTES = 1024
_NO_SHA256 = "not 64 hexadecimal digits"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORMAT_LINE = re.compile(rb"^format = ([0-9]{1,9})$", re.MULTILINE)
_CHOSEN_FOR = re.compile(r"==3\.(\d{1,3})\.\* 2\.(\d{1,3})", re.ASCII)
_DIGEST = re.compile(rf"sha256:{SHA256.pattern}")
_FOREIGN_AGENTS = ("docker", "oras", *sorted(LOCAL_AGENTS))
_AGAIN = "write it again: lumiimg lock"
_BEGINS = "# Written by `lumiimg lock`;"
_HEAD = f"{_BEGINS} to change it, change the request and write it again.\n"


def to_text(lock: Lock, request: Request) -> str:
    """Return the file of a settled lock.

    Raises ValueError for one that is not settled, BadInputError for a value that is not UTF-8, or looks like a secret.
    """
    if lock.unsettled or lock.bootstrap.is_open:
        raise ValueError([*lock.unsettled, f"the digest of {lock.bootstrap.origin}"][0])
    body = tomli_w.dumps(_body(lock, request), multiline_strings=False)
    if not_text := re.search(r"[^\n]*[\ud800-\udfff]", body):
        value = not_text[0].encode("utf-8", "backslashreplace").decode()[:200]
        raise BadInputError(f"a lock can hold only UTF-8: {value}", hint="write it in UTF-8, or leave it out")
    for line in body.splitlines():
        if (plain := hidden(line)) != line:
            raise BadInputError(f"a lock cannot hold a secret: {plain[:200]}", hint="it is passed on; leave it out")
    if len(body.encode()) > _SIZE_LIMIT_BYTES - _HEAD_BYTES:
        raise BadInputError(f"the lock would be larger than {_SIZE_LIMIT_BYTES} bytes", hint="leave something out")
    head = {"format": FORMAT, "lumiimg": __version__, "digest": f"sha256:{_sha256(body)}"}
    return f"{_HEAD}{tomli_w.dumps(head)}\n{body}"


def read_lock(
    path: Path, catalogue: Catalogue, mirrors: Mirrors, search_path: str | None, *, check_layers: bool = True
) -> tuple[Lock, Request]:
    """Read a lock, and what it was made from.

    Raises BadInputError for a file that is none, was changed by hand or comes from a newer lumiimg, RefusedError where
    a layer is not the one that was locked (`check_layers`).
    """
    table = Table(read_document(path), path)
    try:
        return _lock(table, catalogue, mirrors, search_path, check_layers=check_layers)
    except (BadInputError, RefusedError) as error:
        if table.faults:  # a name that was none led to whatever came next
            raise _unread(table.told, path) from error
        if isinstance(error, DecodeError):
            raise BadInputError(
                shortened(error.what, LONG_FAULT), where=error.where or str(path), hint=_AGAIN
            ) from error
        raise


def refuse_other_file(path: Path) -> None:
    """Raise BadInputError where there is a file that is not a lock, neither by its name nor by its first line.

    Also for the lock of a newer lumiimg: what this one would write in its place has less in it.
    """
    if not path.is_file():
        return
    data = read_limited(path, _SIZE_LIMIT_BYTES)
    if path.suffix != ".lock" and not data.startswith(_BEGINS.encode()):
        raise BadInputError("is not a lock, and would be lost", where=str(path), hint="name another file, or remove it")
    written = _FORMAT_LINE.search(data.partition(b"\n\n")[0])
    if written is not None and int(written[1]) > FORMAT:
        raise BadInputError(
            f"is of format {int(written[1])}, this lumiimg writes {FORMAT}; it would be lost",
            where=str(path),
            hint="use the lumiimg that wrote it, name another file, or remove it",
        )


def read_document(path: Path) -> dict[str, Any]:
    """Return what stands in a lock behind its head. Raises BadInputError as `read_lock` does."""
    if not path.exists():
        raise BadInputError("there is no such lock", where=str(path), hint="`lumiimg lock` writes one")
    data = read_limited(path, _SIZE_LIMIT_BYTES + 1)
    if len(data) > _SIZE_LIMIT_BYTES:
        raise _unread(f"is larger than {_SIZE_LIMIT_BYTES} bytes", path)
    try:
        text = data.decode("utf-8")
        document = parse_toml(text)
    except UnicodeDecodeError as error:
        raise _unread("is not a lock: it is not UTF-8", path) from error
    except TomlError as error:
        raise _unread(f"is not a lock: it {error}", path) from error
    _check_head(document, text, path)
    return {key: value for key, value in document.items() if key not in {"format", "lumiimg", "digest"}}


def layer_digest(layer: Layer) -> str:
    """Return the digest of what a layer is made of: its facts, its scripts, its files.

    Raises BadInputError if one of them cannot be read.
    """
    digest = hashlib.sha256()
    if layer.is_foreign:
        digest.update(repr((sorted(layer.has.items()), layer.provides)).encode())
        return f"sha256:{digest.hexdigest()}"
    names = ["layer.toml", "post.sh", *(["test.sh"] if layer.test is not None else [])]
    for name, path in ({name: layer.folder / name for name in names} | {**layer.staged}).items():
        try:
            with open_regular(path) as file:
                digest.update(f"{len(name)}:{name}{os.fstat(file.fileno()).st_size}:".encode())
                hashlib.file_digest(file, lambda: digest)  # in pieces
        except OSError as error:
            raise BadInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return f"sha256:{digest.hexdigest()}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _body(lock: Lock, request: Request) -> dict[str, Any]:
    bootstrap = lock.bootstrap
    base: dict[str, Any] = {"agent": bootstrap.agent, "from": bootstrap.origin}
    if bootstrap.image is not None:
        base["digest"] = f"{bootstrap.image.digest}"
    if lock.base.layer.is_foreign:
        layer = lock.base.layer
        base |= {"sha256": bootstrap.sha256 or "", "has": dict(layer.has), "provides": list(layer.provides)}
    return {
        "site": lock.site or "",
        "fabric": lock.fabric.value,
        "request": {
            # a lock may be read in another folder than it was written in
            "base": bootstrap.origin if str(Path(request.base).absolute()) == bootstrap.origin else request.base,
            "add": list(request.add),
            **({"own": _own_data(request.own)} if request.own else {}),
            "fabric": request.fabric.value if request.fabric else "auto",
            "arguments": {f"{layer}.{name}": value for (layer, name), value in sorted(request.arguments.items())},
            "sources": _request_sources(lock, request),
            "site": _anywhere(request.site or ""),
            "host": str(request.host.absolute()) if request.host else "",
            **({"exclude-newer": request.until} if request.until else {}),
        },
        "base": {**_layer_data(lock.base), **base},
        "layer": [_layer_data(layer) for layer in lock.layers],
        "python": _python_data(lock),
        "rule": [asdict(rule) for rule in lock.rules],
    }


def _own_data(own: OwnPackages) -> dict[str, Any]:
    return {
        "files": [str(Path(file).absolute()) for file in own.files],
        "requirement": [{"text": one.text, "where": one.where, "sha256": list(one.hashes)} for one in own.requirements],
    }


def _own(entry: Table) -> OwnPackages:
    """Return the user's own packages as a lock has them."""
    requirements = []
    for one in entry.tables("requirement"):
        where, hashes = one.string("where"), one.strings("sha256")
        for digest in hashes:
            if not SHA256.fullmatch(digest):
                one.fault("sha256", _NO_SHA256)
        requirements.append(OwnRequirement(str(requirement_of(one.string("text"), where)), where, hashes))
    return OwnPackages(tuple(requirements), entry.strings("files"))


def _anywhere(site: str) -> str:
    """Return a site as it is found from any folder: a name stays one."""
    return str(Path(site).absolute()) if site.endswith(".toml") else site


def _request_sources(lock: Lock, request: Request) -> dict[str, str]:
    """Return what the user gave as sources, files by their absolute path."""
    locked = {source.name: source for layer in lock.stack for source in layer.sources}
    given = {name: locked[name] for name in request.sources if name in locked}
    return {name: f"{source.location}#sha256={source.sha256}" for name, source in sorted(given.items())}


def _layer_data(layer: LockedLayer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "layer": layer_digest(layer.layer),
        "release": layer.release.version if layer.release else "",
        # of a release that no layer.toml has: what was taken for it
        **({"row": encode(layer.release)} if layer.release and layer.release.is_unlisted else {}),
        "arguments": dict(layer.arguments),
        "source": [
            {
                "name": source.name,
                "variable": source.variable,
                "file": source.file,
                "url": source.location,
                "sha256": f"{source.sha256}",
                "note": source.note,
            }
            for source in layer.sources
        ],
    }


def _python_data(lock: Lock) -> dict[str, Any]:
    """Return the wheels as PEP 751 has them, each with the layer that it belongs to."""
    if lock.python is None or not any(layer.wheels for layer in lock.stack):
        return {}
    return {
        "lock-version": "1.0",
        "created-by": "lumiimg",
        "requires-python": f"=={lock.python.version[0]}.{lock.python.version[1]}.*",
        "packages": [
            {
                "name": wheel.name,
                "version": wheel.version,
                "wheels": [{"name": wheel.file, "url": wheel.location, "hashes": {"sha256": f"{wheel.sha256}"}}],
                "tool": {
                    "lumiimg": {
                        "layer": layer.name,
                        "glibc": f"{lock.python.glibc[0]}.{lock.python.glibc[1]}",
                    }
                },
            }
            for layer in lock.stack
            for wheel in layer.wheels
        ],
    }


def _check_head(document: dict[str, Any], text: str, path: Path) -> None:
    written = document.get("format")
    if not isinstance(written, int) or isinstance(written, bool):
        raise _unread("is not a lock: key 'format' is missing", path)
    if written > FORMAT:
        what = f"has format {written}, written by lumiimg {document.get('lumiimg')}; this one reads up to {FORMAT}"
        raise _unread(what, path, hint=f"use that lumiimg, or {_AGAIN}")
    _, _, body = text.partition("\n\n")
    if document.get("digest") != f"sha256:{_sha256(body)}":
        raise _unread("was changed after it was written: its digest is another", path)


def _unread(what: str, path: Path, hint: str = _AGAIN) -> BadInputError:
    return BadInputError(what, where=str(path), hint=hint)


def _lock(
    table: Table, catalogue: Catalogue, mirrors: Mirrors, search_path: str | None, *, check_layers: bool
) -> tuple[Lock, Request]:
    wheels, python = _wheels(table.table("python"))
    entry = table.table("base")
    origin, digest, sha256 = (entry.string("from"), *map(entry.optional_string, ("digest", "sha256")))
    foreign = sha256 is not None
    agent = entry.choice("agent", _FOREIGN_AGENTS if foreign else AGENTS)
    name, has, provides = entry.string("name"), entry.table("has").string_values(), entry.strings("provides")
    entry.match("digest", _DIGEST, "no digest: 'sha256:' and 64 hexadecimal digits")
    entry.match("sha256", SHA256, _NO_SHA256)
    layer = foreign_layer(agent, origin, has, provides) if foreign else catalogue.base(name)
    if foreign and agent in LOCAL_AGENTS and not Path(origin).is_absolute():
        entry.fault("from", f"is {origin!r}, no absolute path")
    elif not foreign and check_layers and (agent, origin) not in {(one.agent, one.origin) for one in layer.bootstraps}:
        entry.fault("from", f"is not where the catalogue has {name} from")
    base = replace(_layer(entry, layer, wheels, check=check_layers), wheels=(), release=None)
    entries = [(one, one.string("name")) for one in table.tables("layer")]
    if again := twice(name for _, name in entries):
        raise DecodeError(f"the layer {again!r} is listed twice")
    asked = table.table("request")
    own = asked.optional("own", _own)
    given = {OWN_PACKAGES: structs.replace(catalogue.layer(OWN_PACKAGES), packages=own.texts)} if own else {}
    layers = [
        _layer(one, given.get(name) or catalogue.layer(name), wheels, check=check_layers) for one, name in entries
    ]
    if lost := wheels.keys() - {name for _, name in entries}:
        raise DecodeError(f"Python packages are of {min(lost)!r}, which is not among the layers")
    fabric = asked.choice("fabric", ("auto", *(f.value for f in Fabric)))
    arguments = {
        (layer, name): value
        for key, value in asked.table("arguments").string_values(may_be_empty=True, any_text=True).items()
        for layer, _, name in [key.rpartition(".")]
    }
    request = Request(
        base=asked.string("base"),
        add=asked.strings("add"),
        own=own,
        arguments=arguments,
        fabric=Fabric(fabric) if fabric not in {"", "auto"} else None,
        sources=asked.table("sources").string_values(),
        site=asked.string("site", may_be_empty=True) or None,
        host=Path(host) if (host := asked.optional_string("host")) else None,
        until=asked.optional_date("exclude-newer"),
    )
    site = table.string("site", may_be_empty=True)
    chosen = Fabric(table.choice("fabric", tuple(f.value for f in Fabric)) or "none")
    rules = tuple(_rule(one) for one in table.tables("rule"))
    table.finish()
    if agent in {"docker", "oras"}:
        if not digest:
            raise DecodeError("key 'base.digest' is missing")
        image = replace(parse_reference(origin, mirrors), digest=digest)
        # The packages that the image lacks come by apt; a mirror, where one is named, is for them.
        mirror = next((one.mirror for one in base.layer.bootstraps if one.agent == agent), None)
        mirror_url = mirrors.named(mirror) if mirror else None
        bootstrap = LockedBootstrap(agent, origin, mirror_url, base.layer.include, "by the lock", image)
    elif foreign:
        _check_file(origin, sha256)
        bootstrap = LockedBootstrap(agent, origin, None, (), "by the lock", None, sha256)
    else:
        bootstrap = choose_bootstrap(base.layer, mirrors, search_path)
        if bootstrap.agent != agent:
            raise MissingHereError(
                f"{base.layer.name} was locked to come by {agent}, which does not work here ({bootstrap.because})"
            )
    lock = Lock(bootstrap, base, tuple(layers), chosen, site or None, python, rules, resolved=True, own=own)
    if check_layers:
        refuse_disagreement(lock, request)
    return lock, request


def _check_file(origin: str, sha256: str | None) -> None:
    """Refuse a base that is another file than was locked; of a folder there is no digest."""
    if sha256 and (actual := file_sha256(Path(origin))) != sha256:
        raise RefusedError(
            f"the base {origin} is not the one that was locked: its sha256 is {actual[:12]}…, not {sha256[:12]}…",
            hint="if the new one is meant, name the whole request: lumiimg lock --base … --add …",
        )


def _layer(entry: Table, layer: Layer, wheels: dict[str, list[LockedSource]], *, check: bool) -> LockedLayer:
    written, here = entry.string("layer"), layer_digest(layer)
    if check and written != here:
        raise RefusedError(
            f"the layer {layer.name} is not the one that was locked: its digest is {here[:19]}…, not {written[:19]}…",
            hint=f"use the same lumiimg and --layers as before, or write the lock again; {layer.folder}",
        )
    version = entry.string("release", may_be_empty=True)
    arguments = entry.table("arguments").string_values(may_be_empty=True, any_text=True)
    if check and (lacking := [key for key in layer.arguments if key not in arguments]):
        raise DecodeError(f"argument {layer.name}.{lacking[0]} is missing")
    for key, value in arguments.items():
        argument = layer.arguments.get(key)
        if not _VARIABLE.fullmatch(key) or (check and argument is None):
            raise DecodeError(f"{shortened(key)!r} is not an argument of {layer.name}")
        if len(value) > LONGEST:
            raise DecodeError(f"argument {layer.name}.{key} has {len(value)} characters; at most {LONGEST} are allowed")
        if argument is not None and argument.pattern is not None and check and not argument.pattern.fullmatch(value):
            raise DecodeError(f"argument {layer.name}.{key} does not match {argument.pattern.pattern}")
    sources = tuple(map(_source, entry.tables("source")))
    taken = {source.name: source.variable for source in layer.sources}
    for source in sources:
        if check and taken.get(source.name) != source.variable:
            raise DecodeError(f"{source.name!r} ({source.variable}) is not a source of {layer.name}")
    of_layer = tuple(wheels.get(layer.name, ()))
    locked = {f"{wheel.name}=={wheel.version}" for wheel in of_layer}
    row = read_row(entry.data["row"], layer.arguments, f"the row of {layer.name}") if entry.has_table("row") else None
    if row is not None and (not row.is_unlisted or row.version != version):
        raise DecodeError(f"the row of {layer.name} is not one of {version!r} that was read from a package index")
    same = [release for release in (*layer.releases, *filter(None, [row])) if release.version == version]
    if check and not same and (version or layer.releases) and not layer.is_base:
        raise DecodeError(f"{version!r} is not a release of {layer.name}")
    # of several for one version, that whose pins are locked
    same.sort(key=lambda release: not locked.issuperset(release.wheels))
    return LockedLayer(layer, same[0] if same else None, arguments, sources, of_layer)


def _source(entry: Table) -> LockedSource:
    location = entry.string("url")
    entry.match("name", NAME, "not a valid name of a source")
    entry.match("variable", _VARIABLE, "not a valid name of a variable")
    return entry.fill(
        LockedSource,
        file=_file(entry, "file"),
        sha256=_sha256_of(entry),
        location=location if Path(location).is_absolute() else validated_url(location, "url"),
        note=entry.string("note", may_be_empty=True),
        version="",
    )


def _file(entry: Table, key: str) -> str:
    entry.match(key, STAGED_FILE, "not a valid name of a file")
    return entry.string(key)


def _sha256_of(entry: Table) -> str:
    entry.match("sha256", SHA256, _NO_SHA256)
    return entry.string("sha256")


def _wheels(table: Table) -> tuple[dict[str, list[LockedSource]], PythonTarget | None]:
    """Return the wheels of each layer, and the Python that they were chosen for."""
    found: dict[str, list[LockedSource]] = {}
    for key in ("lock-version", "created-by"):
        table.optional_string(key)
    required = table.optional_string("requires-python") or ""
    glibc: str | None = None
    for package in table.tables("packages"):
        name, version = package.string("name"), package.string("version")
        tool = package.table("tool").table("lumiimg").string_values()
        layer, glibc = tool.get("layer", ""), tool.get("glibc", "")
        files = list(package.tables("wheels"))
        if len(files) != 1:
            package.fault("wheels", f"should be 1 file, are {len(files)}")
        for wheel in files:
            file, url = _file(wheel, "name"), validated_url(wheel.string("url"), f"the wheel of {name}")
            source = LockedSource(name, "", file, _sha256_of(wheel.table("hashes")), url, "", version)
            found.setdefault(layer, []).append(source)
    if glibc is None:
        return found, None
    chosen_for = _CHOSEN_FOR.fullmatch(f"{required} {glibc}")
    if chosen_for is None:
        table.fault("requires-python", f"is {required!r} with glibc {glibc!r}; allowed: '==3.12.*' with '2.39'")
        return found, None
    python, c_library = (int(number) for number in chosen_for.groups())
    return found, PythonTarget((3, python), (2, c_library))


def _rule(entry: Table) -> RuleResult:
    return entry.fill(RuleResult, outcome=RuleOutcome(entry.choice("outcome", tuple(RuleOutcome)) or "unknown"))
