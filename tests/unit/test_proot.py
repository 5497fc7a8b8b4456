"""Where a proot that is not on PATH is found: in a module of the site, as loaded at login, or in Debian's archive."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.build import proot
from lumiimg.build.proot import find_proot
from lumiimg.core.toml import package_toml
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.fetch.store import Sources, Store
from tests.shared.loopback import Reply, listening
from tests.shared.module_systems import SYSTEMS, start
from tests.shared.programs import needs

if TYPE_CHECKING:
    from tests.shared.loopback import Asked


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with only bash on PATH."""
    needs("proot")
    needs("bash")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bash").symlink_to(shutil.which("bash") or "")
    return {"HOME": f"{tmp_path}", "PATH": f"{tmp_path}/bin"}


def sources_of(mirror: str, folder: Path) -> Sources:
    web, mirrors = Http(retry=False), Mirrors({"debian": mirror})
    return Sources(web, Store(folder / "sources", web, mirrors), mirrors, folder, print)


def package(name: str, content: bytes) -> bytes:
    """Return a Debian package with one file (deb(5))."""
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w:xz") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    found = b"!<arch>\n"
    for member, data in (("debian-binary", b"2.0\n"), ("data.tar.xz", files.getvalue())):
        found += (
            f"{member:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n"[: len(data) % 2]
        )
    return found


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_proot_of_a_site_is_found_in_its_module(tmp_path: Path, environment: dict[str, str], system: str) -> None:
    for name in ("tools", "modules"):
        (tmp_path / name).mkdir()
    (tmp_path / "tools/proot").symlink_to(shutil.which("proot") or "")
    (tmp_path / "modules/LUMI").write_text("#%Module\n")
    module = tmp_path / "modules/systools"
    module.write_text(f"#%Module\nputs stderr hello\nprepend-path PATH {tmp_path}/tools\n")
    (tmp_path / ".bash_profile").write_text(f"unset BASH_ENV\n{start(system)}\nmodule use {module.parent}\n")
    sources = sources_of("http://127.0.0.1:9", tmp_path)
    found = find_proot({**environment, "MODULEPATH": "/appl/modules"}, sources)
    assert found.program == tmp_path / "tools/proot"
    assert f"{found.program} of `module load LUMI systools`" in found.said
    module.write_text("#%Module\nsetenv PATH /nonexistent\n")
    found = find_proot({**environment, "MODULEPATH": "/appl/modules"}, sources)
    assert found.program is None
    assert "not on PATH; `module load LUMI systools` provides no proot that runs; " in found.said
    assert find_proot(environment, None).said == "not on PATH", "only where it is needed is more asked"


def test_a_proot_that_runs_nothing_is_not_used(tmp_path: Path, environment: dict[str, str]) -> None:
    """With one that only exits with 0, every script would seem to have been run."""
    for number, text in enumerate(("#!/bin/bash\n", "", "\x7fELF", "#!/nonexistent\n", "#!/bin/bash\nexit 3\n")):
        proot_of = tmp_path / f"bin{number}"
        proot_of.mkdir()
        (proot_of / "proot").write_text(text)
        (proot_of / "proot").chmod(0o755)
        found = find_proot({**environment, "PATH": f"{proot_of}:{environment['PATH']}"}, None)
        assert (found.program, f"{proot_of}/proot: " in found.said) == (None, True), text


def test_proot_of_debian_is_used_only_with_the_digest_that_it_must_have(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/engine/test_proot.py uses the real packages."""
    program = Path(shutil.which("proot") or "").read_bytes()
    packages = {"/p.deb": package("./usr/bin/proot", program), "/l.deb": package("./lib", b"a library")}
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in packages.items()}
    facts = {
        **package_toml("lumiimg.build", "proot.toml"),
        "package": [
            {"path": "p.deb", "sha256": digests["/p.deb"], "member": "./usr/bin/proot", "file": "proot"},
            {"path": "l.deb", "sha256": digests["/l.deb"], "member": "./lib", "file": "other.so"},
        ],
    }
    monkeypatch.setattr(proot, "package_toml", lambda *_: facts)

    def answer(asked: Asked) -> Reply:
        return Reply(body=packages[asked.path])

    with listening(answer) as mirror:
        found = find_proot(environment, sources_of(mirror, tmp_path))
        assert found.program == tmp_path / f"proot/{facts['date']}/proot", found.said
        assert found.variables["LD_LIBRARY_PATH"] == f"{found.program.parent}"
        assert (found.program.parent / "other.so").read_bytes() == b"a library"
        packages["/p.deb"] += b"\n"
        found = find_proot(environment, sources_of(mirror, tmp_path / "other"))
    assert found.program is None
    assert "has the wrong digest" in found.said
    assert not (tmp_path / "other/proot").is_dir() or not any((tmp_path / "other/proot").rglob("proot"))
