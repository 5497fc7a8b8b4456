"""Signatures of a real engine on images of ours: they cover all, one byte shows, and nothing of ours undoes them."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest

from lumiimg.image import open_image
from lumiimg.image.sif import DESCRIPTOR, DataType, read_sif_file
from tests.engine.conftest import Result, inside, lumiimg
from tests.shared.layer_builder import LAYER
from tests.shared.programs import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

PASSPHRASE = "correct horse"  # noqa: S105 - of a key that lives as long as the test


@pytest.fixture(scope="module")
def keys(images: Path, engine: Engine) -> dict[str, str]:
    """Where a keyring with one key without a passphrase is, as variables of both engines."""
    return keyring(engine, images / "keys", "")


def keyring(engine: Engine, folder: Path, passphrase: str) -> dict[str, str]:
    variables = {"APPTAINER_KEYSDIR": str(folder), "SINGULARITY_SYPGPDIR": str(folder)}
    words = ["-N", "Ann Example", "-E", "ann@example.org", "-C", "", "-P", passphrase, "--bit-length", "2048"]
    argv: list[str | Path] = [engine.path, "key", "newpair", "--push=false", *words]
    subprocess.run(argv, env=os.environ | variables, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return variables


def ask(base: Path, folder: Path) -> list[str | Path]:
    layer = folder / "layers" / "small"
    layer.mkdir(parents=True, exist_ok=True)
    (layer / "layer.toml").write_text(LAYER)
    (layer / "post.sh").write_text("echo text >/opt/small; rm /etc/debian_version\n")
    return ["build", "--base", base, "--layers", layer.parent, "--add", "small", "--json"]


@pytest.fixture(scope="module", params=["flat", "layered"])
def signed(request: pytest.FixtureRequest, bare: Path, images: Path, keys: dict[str, str]) -> Path:
    image = images / f"signed-{request.param}.sif"
    built = lumiimg(*ask(bare, images), "--format", request.param, "-o", image)
    assert built.code == 0, built.err
    before = files(image)
    assert lumiimg("verify", image, env=keys).code == 1
    result = lumiimg("sign", image, "--json", env=keys)
    assert (result.code, result.data["verdict"]) == (0, "signed"), result.err
    assert files(image) == before, "our own reader opens it as before"
    return image


def files(image: Path) -> list[str]:
    with open_image(image) as opened:
        return [entry.path for entry in opened.root.walk()]


def test_a_signature_covers_every_object(signed: Path, keys: dict[str, str], engine: Engine) -> None:
    found = lumiimg("verify", signed, "--json", env=keys)
    assert found.code == 0, found.out + found.err
    [signer] = found.data["signers"]
    assert signer["name"] == "Ann Example <ann@example.org>"
    objects = read_sif_file(signed).objects
    assert len(found.data["objects"]) == signer["verified"] == len(objects) - 1
    assert objects[-1].signer == signer["fingerprint"]
    assert inside(engine, signed, "cat", "/opt/small") == "text\n"
    # once more by the same key adds nothing
    size = signed.stat().st_size
    assert lumiimg("sign", signed, env=keys).code == 0
    assert signed.stat().st_size == size


def test_the_same_build_again_leaves_the_signature(
    signed: Path, bare: Path, images: Path, keys: dict[str, str]
) -> None:
    before = signed.read_bytes()
    form = "layered" if "layered" in signed.name else "flat"
    told = lumiimg(*ask(bare, images), "--format", form, "-o", signed)
    assert (told.code, told.data["is_new"]) == (0, False), told.err
    assert signed.read_bytes() == before
    assert lumiimg("verify", signed, env=keys).code == 0
    told = lumiimg(*ask(bare, images), "--format", form, "-o", signed, "--force")
    assert (told.code, told.data["is_new"]) == (0, True), told.err
    assert lumiimg("verify", signed, env=keys).code == 1, "written anew, it has no signature"
    signed.write_bytes(before)


def altered(signed: Path, at: int, data: bytes, keys: dict[str, str]) -> Result:
    """Verify with other bytes at a place, and put the old ones back."""
    with signed.open("r+b") as file:
        file.seek(at)
        before = file.read(len(data))
        file.seek(at)
        file.write(data)
        file.flush()
        try:
            return lumiimg("verify", signed, "--json", env=keys)
        finally:
            file.seek(at)
            file.write(before)


def test_one_byte_anywhere_in_an_object_shows(signed: Path, keys: dict[str, str]) -> None:
    objects = read_sif_file(signed).objects
    content = signed.read_bytes()
    for item in objects:
        if item.data_type == DataType.SIGNATURE:
            continue
        for at in (item.offset, item.offset + item.size_bytes // 2, item.offset + item.size_bytes - 1):
            found = altered(signed, at, bytes([content[at] ^ 1]), keys)
            assert (found.code, found.data["verdict"]) == (1, "altered"), (item, at, found.out)
    at = content.index(b'"digest":', objects[-1].offset) + 20
    found = altered(signed, at, bytes([content[at] ^ 1]), keys)
    assert (found.code, found.data["verdict"]) == (1, "altered"), "the signature itself"
    at = 0x20 + 10 + 3 + 3  # the number of the image, in its header
    found = altered(signed, at, bytes([content[at] ^ 1]), keys)
    assert (found.code, found.data["verdict"]) == (1, "altered")
    assert lumiimg("verify", signed, env=keys).code == 0


def test_layers_in_another_order_show_though_the_engine_says_yes(
    signed: Path, keys: dict[str, str], engine: Engine
) -> None:
    objects = read_sif_file(signed).objects
    partitions = [number for number, item in enumerate(objects) if item.data_type == DataType.PARTITION]
    with signed.open("rb") as file:
        file.seek(4096)
        table = [file.read(DESCRIPTOR.size) for _ in objects]
    one, two = partitions[-2:] if len(partitions) > 1 else (0, 1)
    table[one], table[two] = table[two], table[one]
    found = altered(signed, 4096, b"".join(table), keys)
    assert (found.code, found.data["verdict"]) == (1, "altered"), found.out
    assert "in another order" in found.data["said"] or engine.version != "1.4.5"


def test_an_object_that_was_added_later_shows(
    signed: Path, keys: dict[str, str], engine: Engine, tmp_path: Path
) -> None:
    image, more = tmp_path / "x.sif", tmp_path / "more.json"
    more.write_text("{}")
    for group in ([], ["--groupid", "1"]):
        image.write_bytes(signed.read_bytes())
        subprocess.run([engine.path, "sif", "add", "--datatype", "6", *group, image, more], check=True)
        found = lumiimg("verify", image, "--json", env=keys)
        assert (found.code, found.data["verdict"]) == (1, "altered"), found.out


def test_without_the_key_nothing_is_decided_and_nobody_is_asked(signed: Path, tmp_path: Path) -> None:
    nobody = {"APPTAINER_KEYSDIR": str(tmp_path / "none"), "SINGULARITY_SYPGPDIR": str(tmp_path / "none")}
    found = lumiimg("verify", signed, "--json", env=nobody)
    assert (found.code, found.data["verdict"]) == (3, "unknown key")
    assert found.data["claimed_fingerprints"] == [read_sif_file(signed).objects[-1].signer]
    assert "no key server was asked" in lumiimg("verify", signed, env=nobody).out
    refused = lumiimg("sign", signed, env=nobody)
    assert refused.code == 4
    assert "key newpair` makes one" in refused.err


@pytest.fixture(scope="module")
def locked(images: Path, engine: Engine) -> dict[str, str]:
    """A keyring whose key has a passphrase."""
    return keyring(engine, images / "locked-keys", PASSPHRASE)


@pytest.fixture
def copy(bare: Path, tmp_path: Path) -> Path:
    image = tmp_path / "copy.sif"
    image.write_bytes(bare.read_bytes())
    return image


def signing(image: Path, keys: dict[str, str], passphrase: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "lumiimg", "sign", str(image)]
    return subprocess.run(
        argv, env=os.environ | keys, input=passphrase, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_passphrase_comes_from_standard_input(copy: Path, locked: dict[str, str]) -> None:
    before = copy.read_bytes()
    for wrong in ("", "no\n"):
        refused = signing(copy, locked, wrong)
        assert refused.returncode == 1
        assert "the passphrase of the key is wrong, or none was given" in refused.stderr
        assert copy.read_bytes() == before
    done = signing(copy, locked, f"{PASSPHRASE}\n")
    assert done.returncode == 0, done.stderr
    assert "Enter" not in done.stdout


class Terminal:
    """`lumiimg sign` at a terminal of its own, in front."""

    def __init__(self, image: Path, keys: dict[str, str]) -> None:
        self.shown = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [sys.executable, "-m", "lumiimg", "sign", str(image)], os.environ | keys)  # noqa: S606

    def read_until(self, text: bytes, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.shown and time.monotonic() < deadline:
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.shown += os.read(self.fd, 4096)
                except OSError:  # the other end is closed
                    break
        assert text in self.shown, self.shown

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.fd)[3] & termios.ECHO)

    def end(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_at_a_terminal_the_engine_asks_and_does_not_show_it(copy: Path, locked: dict[str, str]) -> None:
    terminal = Terminal(copy, locked)
    terminal.read_until(b"Enter key passphrase")
    wait_until(lambda: not terminal.echoes())
    terminal.type(f"{PASSPHRASE}\n".encode())
    terminal.read_until(b"covers the header")
    assert PASSPHRASE.encode() not in terminal.shown
    assert terminal.end() == 0
    os.close(terminal.fd)


def test_ctrl_c_at_the_question_ends_it_and_leaves_image_and_terminal(copy: Path, locked: dict[str, str]) -> None:
    before = copy.read_bytes()
    terminal = Terminal(copy, locked)
    terminal.read_until(b"Enter key passphrase")
    wait_until(lambda: not terminal.echoes())
    terminal.type(b"\x03")
    terminal.read_until(b"interrupted", timeout_s=20)
    assert terminal.echoes()
    assert terminal.end() == 128 + signal.SIGINT
    assert copy.read_bytes() == before
    os.close(terminal.fd)
