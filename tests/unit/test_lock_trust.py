"""A lock of a stranger: whatever it says, what is built is of the catalogue, or listed, or of what its author may choose."""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
import itertools
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.core.errors import LumiimgError
from lumiimg.definition.writer import write_chain
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.resolve import lock_check
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.lock import locked_wheel
from lumiimg.resolve.lock_check import lock_of, outside_catalogue
from lumiimg.resolve.lock_file import read_document, to_text
from lumiimg.resolve.planner import decide
from lumiimg.resolve.python_target import PythonTarget
from lumiimg.resolve.request import Request
from tests.fuzz.locks import lock_of_document, with_digests
from tests.shared.layer_builder import BASE, LAYER, catalogue_of
from tests.shared.programs import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.resolve.lock import Lock

INDEX, GENERAL = "https://download.pytorch.org/whl/rocm6.4", "https://pypi.test/simple"
MIRRORS = Mirrors({"pypi": GENERAL})
BOX = BASE.replace("[[", 'provides = ["python3"]\nhas = { python = "3.12", glibc = "2.39", jax = "0.9" }\n[[', 1)
WHOLE = f"""\
{LAYER}packages = ["egg"]
[arguments.COMMIT]
default = "one"
help = "which"
[arguments.VERSION]
default = "2.0"
help = "which"
[arguments.ARCH]
default = "gfx90a"
help = "which"
pattern = "gfx[0-9a-f]+"
[sources.made]
url = "https://x.test/{{COMMIT}}.tar.gz"
file = "t.tar.gz"
key = "{{COMMIT}}"
source = "s"
[sources.published]
url = "https://x.test/published.tar.gz"
file = "p.tar.gz"
key = "one"
source = "s"
[sources.published.sha256]
one = "{"0" * 64}"
[[release]]
version = "2.0"
wheels = ["snake==2.0+rocm6.4", "torch==2.9.1+rocm6.4"]
indexes = ["{INDEX}"]
without = ["worm"]
source = "the tests"
[unlisted]
read = "metadata"
projects = ["snake"]
range = ">=1"
arguments = {{ COMMIT = "{{VERSION}}" }}
wheels = ["snake=={{VERSION}}"]
indexes = ["{INDEX}"]
source = "s"
date = 2026-01-01
"""
ZEROS, ONES = "0" * 64, "1" * 64
Document = dict[str, Any]


@dataclass(frozen=True)
class Stranger:
    """Who changes a lock in which everything is of the catalogue."""

    catalogue: Catalogue
    document: Document
    path: Path

    def lock(self, change: Callable[[Document], object]) -> Lock:
        """What is read of the lock after a change."""
        document = copy.deepcopy(self.document)
        change(document)
        self.path.write_bytes(lock_of_document(document))
        return lock_of(read_document(self.path), [self.catalogue], MIRRORS, "/bin", self.path)

    def listed(self, change: Callable[[Document], object]) -> list[str]:
        """What is listed of it."""
        return outside_catalogue(self.lock(change), MIRRORS)


def made(folder: Path, box: str = BOX, whole: str = WHOLE, **arguments: str) -> Stranger:
    layers = folder / "layers"
    layers.mkdir()
    catalogue = catalogue_of(layers, box=box, whole=whole)
    values = {"VERSION": "2.0", **arguments}
    request = Request("box", ("whole",), arguments={f"whole.{name}": value for name, value in values.items()})
    lock = with_digests(decide(request, PlanContext(catalogue, MIRRORS, "/bin")).require_lock())
    places = [*(f"{INDEX}/{wheel.file}" for wheel in lock.layers[0].wheels), f"{GENERAL}/{file_of('egg')}"]
    layer = replace(lock.layers[0], wheels=tuple(locked_wheel(place, digest(place)) for place in places))
    return Stranger(catalogue, tomllib.loads(to_text(replace(lock, layers=(layer,)))), folder / "lumiimg.lock")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def file_of(project: str, version: str = "1.0") -> str:
    return f"{project}-{version}-py3-none-any.whl"


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stranger:
    monkeypatch.setattr(lock_check, "public_index", lambda: ())
    return made(tmp_path)


def more(*projects: str, index: str = GENERAL) -> Callable[[Document], object]:
    """More wheels of an index."""
    added = {f"{index}/{file_of(project)}": ONES for project in projects}
    return lambda document: document["layer"][0]["wheels"].update(added)


def moved(old: str, new: str) -> Callable[[Document], object]:
    """Each wheel whose address has one text at another."""

    def change(document: Document) -> None:
        layer = document["layer"][0]
        layer["wheels"] = {url.replace(old, new): sha256 for url, sha256 in layer["wheels"].items()}

    return change


def with_row(first_download: str | None = None, **row: object) -> Callable[[Document], object]:
    """A release without a row, by what the stranger says was read of it."""

    def change(document: Document) -> None:
        entry = document["layer"][0]
        document["request"] |= {"add": ["whole"], "arguments": {}}
        entry["release"] = "9.9"
        entry["row"] = {"version": "9.9", "read": dt.date(2026, 1, 1), "source": "s", "without": ["worm"], **row}
        entry["wheels"] = {f"{INDEX}/{file_of('snake', '9.9')}": ONES}
        if first_download is not None:
            document["first-download"] = {first_download: ONES}

    return change


def asking(**values: object) -> Callable[[Document], object]:
    return lambda document: document["request"].update(values)


def both(*changes: Callable[[Document], object]) -> Callable[[Document], object]:
    return lambda document: [change(document) for change in changes]


LISTED = {
    "a pinned wheel of the general index": (moved(INDEX, GENERAL), ("snake 2.0+rocm6.4", "torch 2.9.1+rocm6.4")),
    "one of another index": (moved("download.pytorch.org", "other.test"), ("snake 2.0", "torch 2.9.1")),
    "another version of a pinned one": (moved("torch-2.9.1+rocm6.4", "torch-2.9.1+cu128"), ("torch 2.9.1+cu128",)),
    "a free wheel of the layer's index": (moved(f"{GENERAL}/egg", f"{INDEX}/egg"), ("egg 1.0",)),
    "what the base has": (more("jax"), ("jax 1.0",)),
    "what the release leaves out": (more("worm", "triton"), ("triton 1.0", "worm 1.0")),
    "what is for CUDA": (more("nvidia_cublas_cu12"), ("nvidia-cublas-cu12 1.0",)),
    "a release without a row, whatever is said of it": (
        both(
            with_row(
                "https://x.test/evil.tar.gz",
                arguments={"COMMIT": "evil"},
                indexes=["https://evil.test"],
                wheels=["snake==9.9"],
            ),
            moved(INDEX, "https://evil.test"),
        ),
        (
            "the release whole 9.9, which is not in the catalogue",
            "source made of whole from https://x.test/evil",
            "Python package snake 9.9 of whole from https://evil.test/",
        ),
    ),
    "a source of a stranger": (
        asking(sources={"published": f"https://evil.test/x#sha256={ZEROS}"}),
        ("source published of whole from https://evil.test/x",),
    ),
    "a commit": (
        lambda document: document.update(
            {
                "request": {**document["request"], "arguments": {"whole.COMMIT": "evil"}},
                "first-download": {"https://x.test/evil.tar.gz": ONES},
            }
        ),
        ("source made of whole from https://x.test/evil.tar.gz",),
    ),
}


@pytest.mark.threat
@pytest.mark.parametrize("case", LISTED)
def test_what_a_lock_takes_from_elsewhere_is_listed(stranger: Stranger, case: str) -> None:
    change, reported = LISTED[case]
    found = stranger.listed(change)
    assert len(found) == len(reported), found
    assert [words for words in reported if not any(words in line for line in found)] == []


@pytest.mark.threat
def test_a_base_that_the_catalogue_names_by_its_digest_is_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_check, "public_index", lambda: ())
    stranger = made(tmp_path, BOX.replace('"busybox"', f'"busybox@sha256:{ZEROS}"'))
    assert stranger.listed(lambda _: None) == []
    with pytest.raises(LumiimgError, match=r"'base.digest' is not that of base.from"):
        stranger.lock(lambda document: document["base"].update(digest=f"sha256:{ONES}"))


@pytest.mark.threat
def test_a_torch_of_the_general_index_takes_no_layers_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_check, "public_index", lambda: ())
    free = f'{LAYER}requires = ["python3"]\npackages = ["egg"]\n'
    of_torch = (
        f"{WHOLE.partition('packages')[0]}[[release]]{WHOLE.partition('[[release]]')[2].partition('[unlisted]')[0]}"
    )
    catalogue = catalogue_of(
        tmp_path,
        box=BOX,
        low=free,
        pytorch=of_torch.replace("[[release]]", 'provides = ["torch"]\n[[release]]', 1),
        high=free.replace('"python3"', '"torch"'),
    )
    request = Request("box", ("low", "pytorch", "high"))
    lock = with_digests(decide(request, PlanContext(catalogue, MIRRORS, "/bin")).require_lock())
    stranger = Stranger(catalogue, tomllib.loads(to_text(lock)), tmp_path / "lumiimg.lock")

    def replaced(document: Document) -> None:
        document["request"]["add"] = ["low", "high"]
        low, _, high = document["layer"]
        document["layer"] = [{**low, "wheels": {f"{GENERAL}/{file_of('torch', '2.9.1')}": ONES}}, high]

    with pytest.raises(LumiimgError, match="high requires torch, which is not among the layers below it"):
        stranger.lock(replaced)
    (reported,) = stranger.listed(both(replaced, lambda document: document["layer"].pop(), asking(add=["low"])))
    assert "Python package torch 2.9.1 of low from https://pypi.test" in reported


def test_what_is_of_the_catalogue_is_known_where_an_argument_has_to_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_check, "public_index", lambda: ())
    needed = f'{WHOLE}[arguments.NEEDED]\ndefault = ""\nhelp = "which"\npattern = ".+"\n'
    assert made(tmp_path, whole=needed, NEEDED="x").listed(lambda _: None) == []


# -- any change --

CHOSEN = {
    ("base", "digest"): "which image of the repository",
    ("gpu",): "for which GPU",
    ("request", "arguments", "whole.VERSION"): "arguments",
    ("layer", 0, "wheels"): "packages of the general index; a digest is compared with what the index has",
    ("first-download", "https://x.test/one.tar.gz"): "digests that nobody published",
}
"""What its author may choose (docs/security.md), by where it stands."""
TEXTS = (
    *(
        "",
        "x",
        "0",
        "9.9",
        "main",
        "evil",
        "../x",
        "/etc/passwd",
        "~/x",
        "x y",
        "-x",
        "$(id)",
        "{COMMIT}",
        "box",
        "whole",
    ),
    *("gfx942", "docker", "localimage", "host", "https://evil.test/x", "docker://evil.test/x", f"sha256:{ONES}", ONES),
)
HOSTS = (
    "evil.test",
    "download.pytorch.org",
    "download-r2.pytorch.org",
    "pypi.test",
    "pypi.test:8443",
    "pypi.test.evil",
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value of a document that is not a table, with where it stands."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(value, (*path, key))
    else:
        yield path, tree


def changed(place: tuple[Any, ...], value: object) -> Callable[[Document], object]:
    def change(document: Any) -> None:
        for key in place[:-1]:
            document = document[key]
        document[place[-1]] = value

    return change


def built(lock: Lock) -> object:
    return [*write_chain(lock)], lock.bootstrap.agent, lock.bootstrap.image


@pytest.mark.threat
def test_whatever_text_of_a_lock_is_changed_what_is_built_is_the_same_or_that_is_listed(stranger: Stranger) -> None:
    good, taken = built(stranger.lock(lambda _: None)), 0
    of_all = [value for _, value in places(stranger.document) if isinstance(value, str)]
    optional: list[tuple[tuple[Any, ...], str]] = [(("request", key), "") for key in ("host", "site", "exclude-newer")]
    optional += [(("layer", 0, "row"), ""), (("base", "release"), ""), (("base", "image"), ""), (("gpu",), "")]
    cases = [
        (place, value)
        for place, old in [*places(stranger.document), *optional]
        if place[0] not in {"format", "lumiimg", "digest"}
        for value in sorted({*TEXTS, *of_all, f"{old}x", f"x{old}", old[:-1], old[:-1] + "1", old.upper()} - {old})
    ]
    assert len(cases) > 1000
    for place, value in sampled(cases, 150):
        try:
            lock = stranger.lock(changed(place, value))
            new = built(lock)
        except LumiimgError:
            continue
        taken += 1
        if new != good and not any(place[: len(chosen)] == chosen for chosen in CHOSEN):
            assert outside_catalogue(lock, MIRRORS), (place, value)
    assert taken > 5


@pytest.mark.threat
def test_wherever_a_wheel_of_a_lock_is_from_it_is_listed_unless_its_project_is_from_there(stranger: Stranger) -> None:
    projects = ("snake", "torch", "egg", "jax", "worm", "triton", "nvidia_cublas", "Torch", "to.rch", "t_orch")
    versions = ("1.0", "2.0+rocm6.4", "2.9.1+rocm6.4", "2.9.1", "2.9.1+rocm6.4.1", "2.9.1+ROCM6.4")
    allowed = {(host, *pin) for host in HOSTS[1:3] for pin in (("snake", versions[1]), ("torch", versions[2]))}
    allowed |= {("pypi.test", free, version.lower()) for free in ("egg", "to.rch", "t_orch") for version in versions}
    where = [("https", host) for host in HOSTS] + [("http", HOSTS[1]), ("ftp", HOSTS[1])]
    cases = [*itertools.product(stranger.document["layer"][0]["wheels"], where, projects, versions)]
    assert len(cases) > 1000
    unlisted = 0
    for old, (scheme, host), project, version in sampled(cases, 150):
        try:
            found = stranger.listed(moved(old, f"{scheme}://{host}/x/{file_of(project, version)}"))
        except LumiimgError:
            continue
        if not found:
            unlisted += 1
            assert scheme == "https"
            assert (host, project.lower(), version.lower()) in allowed
    assert unlisted > 0


def test_a_version_that_an_image_names_is_no_template(stranger: Stranger) -> None:
    image = {"has": {"python": "{VERSION}", "glibc": "{"}, "provides": ["python3"]}
    base = {"name": "box", "agent": "localimage", "from": "/x.sif", "image": image}
    lock = stranger.lock(lambda document: document.update(base=base))
    assert (lock.base.versions, PythonTarget.from_versions(lock.versions)) == (image["has"], None)
