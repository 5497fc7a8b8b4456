"""Make of a wheel one file for the Pythons and machines that clusters have, and the easyconfig that installs it.

    python .ci/zipapp.py dist/lumiimg-0.1.0-py3-none-any.whl    # dist/lumiimg-0.1.0.pyz, dist/lumiimg-0.1.0.eb

The packages that lumiimg needs come from the index of this machine, in the versions and with the digests of
.ci/requirements.txt. The same wheel and the same requirements give the same bytes.
"""

import hashlib
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
# the C library that SUSE Linux Enterprise 15 has is 2.31 (service packs 3 and later), Red Hat's of version 8 is 2.28
PLATFORM = "manylinux_2_28"
NOTES = {"RECORD", "INSTALLER", "REQUESTED", "WHEEL", "direct_url.json", "uv_cache.json", ".lock"}
"""What an installer notes down, of the day and of the platform."""
DATE = (1980, 1, 1, 0, 0, 0)


def packages(wheel: Path) -> dict[str, bytes]:
    """Return all files of all packages by name; compiled modules have Python and machine in their names."""
    found: dict[str, bytes] = {}
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory() as scratch:
        for python in PYTHONS:
            for machine in MACHINES:
                target = Path(scratch) / f"{python}-{machine}"
                words: list[str | Path] = ["--quiet", "--no-deps", "--only-binary", ":all:", "--target", target]
                words += ["--python-version", python, "--python-platform", f"{machine}-{PLATFORM}"]
                subprocess.run([uv, "pip", "install", *words, "--require-hashes", "-r", REQUIREMENTS], check=True)
                subprocess.run([uv, "pip", "install", *words, wheel], check=True)
                for file in sorted(target.rglob("*")):
                    name = file.relative_to(target).as_posix()
                    if not file.is_file() or file.name in NOTES or name.startswith("bin/"):
                        continue
                    data = file.read_bytes()
                    if found.setdefault(name, data) != data:
                        sys.exit(f"zipapp: {name} is another for Python {python} on {machine}")
    return found


def write(files: dict[str, bytes], target: Path) -> None:
    """Write the archive; `digest` in it names its content, and so the folder that it is unpacked to."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{len(name)}:{name}{len(data)}:".encode() + data)
    files = {**files, "digest": digest.hexdigest()[:16].encode()}
    with target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in sorted(files.items()):
                info = zipfile.ZipInfo(name, DATE)
                info.external_attr = (stat.S_IFREG | 0o644) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)
    target.chmod(0o755)


def easyconfig(archive: Path, version: str) -> None:
    """Write the easyconfig of an archive, beside it."""
    text = (HERE / "lumiimg.eb").read_text(encoding="utf-8")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    text = text.replace("@VERSION@", version).replace("@SHA256@", sha256)
    archive.with_suffix(".eb").write_text(text, encoding="utf-8")


def main() -> None:
    """Make both beside the wheel that the argument names."""
    wheel = Path(sys.argv[1])
    name, version, *_ = wheel.name.split("-")
    target = wheel.with_name(f"{name}-{version}.pyz")
    files = {f"packages/{name}": data for name, data in packages(wheel).items()}
    write({"__main__.py": (HERE / "zipapp_main.py").read_bytes(), **files}, target)
    easyconfig(target, version)
    print(f"{target}: {len(files)} files, {target.stat().st_size / 1e6:.1f} MB")


main()
