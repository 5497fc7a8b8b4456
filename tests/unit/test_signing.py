"""`sign` and `verify` around a stand-in for an engine: whatever it answers, a yes is only what it says whole and clearly."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from lumiimg.check.signed import SignatureVerdict, verify
from lumiimg.cli.main import main
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.engine.process import OUTPUT_LIMIT_BYTES
from lumiimg.engine.signing import private_keys
from tests.shared.programs import examples, unwrapped

ONE, TWO = "4BD22393BC544A7F64642D262721D7A1C7351F9E", "91E4FB633A3399A2873EADC5E3629066C947557B"
# as Apptainer 1.4.5 prints it
KEYS = f"""\
Private key listing (/home/a/.apptainer/keys/pgp-secret):

0)  User:              Test One () <one@example.org>
    Creation time:     2026-11-21 22:45:36 +0000 UTC
    Fingerprint:       {ONE}
    Length (in bits):  2048

1)  User:              Test Two (c) <two@example.org>
    User:              Test Two () <two@work.example>
    Creation time:     2026-11-21 22:45:36 +0000 UTC
    Fingerprint:       {TWO}
    Length (in bits):  2048

"""
STANDIN = """\
#!{python}
import pathlib, sys
here = pathlib.Path(__file__).parent
here.joinpath("calls").open("a").write(" ".join(sys.argv[1:]) + chr(10))
answer = here / sys.argv[1]
sys.stdout.write("apptainer version 1.4.5" if sys.argv[1] == "--version" else answer.read_text() if answer.exists() else "")
if sys.argv[1] == "sign":
    sys.stderr.write("FATAL:   Failed to sign container: openpgp: invalid data: private key checksum failure")
sys.exit(255 if sys.argv[1] in ("verify", "sign") and not here.joinpath("good").exists() else 0)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A stand-in that prints what a file says."""
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(STANDIN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("LUMIIMG_ENGINE", str(program))
    return Engine(program, EngineKind.APPTAINER, "1.4.5", frozenset())


def sif(path: Path, *kinds: tuple[int, int], signer: str = ONE) -> Path:
    """A SIF of objects (number, type) and one signature."""
    table, at = b"", 4096 + 585 * 8
    for number, kind in (*kinds, (90, 0x4005)):
        extra = (
            struct.pack("<i20s", 5, bytes.fromhex(signer)) if kind == 0x4005 else struct.pack("<ii3s", 1, 4, b"02\0")
        )
        name = b"a\nb.json" if kind == 0x4006 else b""
        table += struct.pack("<iBIII7q128s384s", kind, 1, number, 0xF0000001, 0, at, 8, 8, 0, 0, 0, 0, name, extra)
        at += 8
    fields = (0, 0, 0, len(kinds) + 1, 4096, 585 * (len(kinds) + 1), 4096, 0)
    header = struct.pack("<32s10s3s3s16s8q", b"#!/run", b"SIF_MAGIC\0", b"01\0", b"02\0", bytes(16), *fields)
    path.write_bytes((header.ljust(4096, b"\0") + table).ljust(at, b"\0"))
    return path


def said(*entries: dict[str, Any], fatal: str = "") -> str:
    """What an engine prints."""
    document = {"Signatures": 1, "SignerKeys": [{"Signer": entry} for entry in entries] or None}
    end = f"FATAL:   Failed to verify container: integrity: {fatal}\n" if fatal else ""
    return f"INFO:    Verifying image with PGP key material\n{json.dumps(document, indent=2)}\n{end}"


def entry(**other: object) -> dict[str, Any]:
    whole = {"Partition": "FS", "Name": "A <a@b>", "Fingerprint": ONE.lower()}
    return whole | {"KeyLocal": True, "KeyCheck": True, "DataCheck": True} | other


def judged(engine: Engine, image: Path, text: str, *, good: bool = False) -> SignatureVerdict:
    (engine.path.parent / "verify").write_text(text)
    (engine.path.parent / "good").unlink(missing_ok=True)
    if good:
        (engine.path.parent / "good").touch()
    return verify(engine, image, os.environ).verdict


@pytest.mark.threat("S11")
def test_a_yes_takes_the_engines_yes_for_every_object(engine: Engine, tmp_path: Path) -> None:
    image = sif(tmp_path / "x.sif", (1, 0x4001), (2, 0x4006), (3, 0x4004))
    assert judged(engine, image, said(entry(), entry(), entry()), good=True) is SignatureVerdict.SIGNED
    assert judged(engine, image, said(entry(), entry()), good=True) is SignatureVerdict.UNDECIDED
    assert judged(engine, image, said(entry(), entry(), entry())) is SignatureVerdict.UNDECIDED
    assert (
        judged(engine, image, said(entry(), entry(), entry(DataCheck=False)), good=True) is SignatureVerdict.UNDECIDED
    )
    assert judged(engine, image, said(entry(), entry(), entry(KeyCheck=None)), good=True) is SignatureVerdict.UNDECIDED
    assert judged(engine, image, said(), good=True) is SignatureVerdict.UNDECIDED
    for spoiled in (
        {"DataCheck": False},
        {"KeyCheck": False},
        {"DataCheck": "true"},
        {"KeyCheck": 1},
        {"KeyCheck": None},
    ):
        entries = (entry(), entry(), entry(), entry(**spoiled))  # of a second signature
        assert judged(engine, image, said(*entries), good=True) is SignatureVerdict.UNDECIDED
    assert judged(engine, sif(tmp_path / "none.sif"), said(), good=True) is SignatureVerdict.UNDECIDED
    calls = (engine.path.parent / "calls").read_text().splitlines()
    none = tmp_path / "none.sif"
    assert {*calls} == {f"verify --local --json {image}", f"verify --local --json {none}"}, "no key server is asked"


@pytest.mark.threat("S11")
def test_objects_in_another_order_are_no_yes(engine: Engine, tmp_path: Path) -> None:
    image = sif(tmp_path / "x.sif", (1, 0x4001), (3, 0x4004), (2, 0x4004))
    assert judged(engine, image, said(entry(), entry(), entry()), good=True) is SignatureVerdict.ALTERED


@pytest.mark.parametrize(
    ("fatal", "verdict"),
    [
        ("signature not found for object group 1", SignatureVerdict.UNSIGNED),
        ("data object integrity compromised: 3", SignatureVerdict.ALTERED),
        ("data object descriptor integrity compromised: 3", SignatureVerdict.ALTERED),
        ("header integrity compromised", SignatureVerdict.ALTERED),
        ("object 4: object not signed", SignatureVerdict.ALTERED),
        ("object 4: signed object not found", SignatureVerdict.ALTERED),
        ("non-signature object not associated with object group", SignatureVerdict.ALTERED),
        ("signature object 4 not valid: openpgp: invalid signature: hash tag doesn't match", SignatureVerdict.ALTERED),
        ("signature object 4 not valid: openpgp: signature made by unknown entity", SignatureVerdict.UNKNOWN_KEY),
        ("signature object 4 not valid: openpgp: key expired", SignatureVerdict.UNDECIDED),
        ("key material not provided for DSSE envelope signature", SignatureVerdict.UNDECIDED),
        ("what no engine has said yet", SignatureVerdict.UNDECIDED),
    ],
)
def test_what_stands_against_it_is_told_apart(
    engine: Engine, tmp_path: Path, fatal: str, verdict: SignatureVerdict
) -> None:
    image = sif(tmp_path / "x.sif", (1, 0x4001))
    assert judged(engine, image, said(fatal=fatal)) is verdict


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{\n",
        "{}\n",
        "[]\n",
        '{\n"SignerKeys": 7}\n',
        '{\n"SignerKeys": [null]}\n',
        '{\n"SignerKeys": [{"Signer": []}]}\n',
        '{\n"SignerKeys": {"Signer": {}}}\n',
        '{\n"SignerKeys": ' + "[" * 100_000,
        '{\n"SignerKeys": [' + ", ".join([json.dumps({"Signer": entry()})] * 20_001) + "]}",
        "x" * (OUTPUT_LIMIT_BYTES + 100),
        "\0\x1b[31m\ud7ff",
    ],
    ids=range(13),
)
@pytest.mark.parametrize("good", [True, False])
@pytest.mark.threat("S11")
def test_what_no_engine_writes_is_never_a_yes(engine: Engine, tmp_path: Path, text: str, good: bool) -> None:
    image = sif(tmp_path / "x.sif", (1, 0x4001))
    assert judged(engine, image, text, good=good) is SignatureVerdict.UNDECIDED


@pytest.mark.threat("S11")
def test_spoiled_answers_are_never_a_yes(engine: Engine, tmp_path: Path) -> None:
    image = sif(tmp_path / "x.sif", (1, 0x4001), (2, 0x4006), (3, 0x4004))
    whole = said(entry(), entry(), entry())
    for number in range(0, len(whole), max(1, len(whole) // examples(20))):
        assert judged(engine, image, whole[:number], good=True) is SignatureVerdict.UNDECIDED


@pytest.mark.threat("S16")
def test_hostile_names_stay_in_their_line(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = sif(tmp_path / "x.sif", (1, 0x4006))
    name = "Eve\x1b[2J\n  by Somebody Else" + "x" * 100_000
    assert judged(engine, image, said(entry(Name=name)), good=True) is SignatureVerdict.SIGNED
    assert main(["verify", str(image)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\n  by Somebody" not in out
    assert r"a\nb.json" in out
    assert len(out) < 2000
    assert main(["verify", str(image), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "signed"


def test_without_a_signature_the_engine_is_not_asked(engine: Engine, tmp_path: Path) -> None:
    image = sif(tmp_path / "x.sif", (1, 0x4001))
    data = bytearray(image.read_bytes())
    data[4096 + 585 + 4] = 0  # the signature's descriptor is free
    image.write_bytes(data)
    assert main(["verify", str(image)]) == 1
    assert "verify" not in (engine.path.parent / "calls").read_text()


def test_the_keys_of_a_keyring(engine: Engine) -> None:
    (engine.path.parent / "key").write_text(KEYS)
    keys = private_keys(engine, os.environ)
    assert [(key.index, key.owner, key.fingerprint) for key in keys] == [
        (0, "Test One () <one@example.org>", ONE),
        (1, "Test Two (c) <two@example.org>", TWO),
    ]
    (engine.path.parent / "key").write_text("Private key listing (/x):\n\n")
    assert private_keys(engine, os.environ) == ()


@pytest.mark.parametrize(
    ("keys", "words", "code", "told"),
    [
        ("", [], 4, "`apptainer key newpair` makes one"),
        (KEYS, [], 2, "--key names one: Test One"),
        (KEYS, ["--key", "c7351f9e"], 1, "the passphrase of the key is wrong"),
        (KEYS, ["--key", f"0x{TWO}"], 1, f"as Test Two (c) <two@example.org>, {TWO}"),
        (KEYS, ["--key", "C7351F9F"], 2, "no key of the keyring; there are Test One"),
        (KEYS, ["--key", "7"], 2, "fewer than 8 digits"),
        (KEYS.replace(TWO, ONE), ["--key", ONE], 2, "more than one key"),
    ],
)
@pytest.mark.usefixtures("clean_home")
def test_which_key_signs(
    engine: Engine, tmp_path: Path, capfd: pytest.CaptureFixture[str], keys: str, words: list[str], code: int, told: str
) -> None:
    (engine.path.parent / "key").write_text(keys)
    image = sif(tmp_path / "x.sif", (1, 0x4001), signer="AB" * 20)
    assert main(["sign", str(image), *words]) == code
    assert told in unwrapped(capfd.readouterr().err)
    calls = (engine.path.parent / "calls").read_text()
    assert (f"sign --keyidx {int('Two' in told)} {image}" in calls) == (code == 1)


def test_what_is_no_sif_cannot_be_signed(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del engine
    (tmp_path / "text").write_text("x" * 1000)
    for path in (tmp_path / "text", tmp_path, tmp_path / "none"):
        for command in ("sign", "verify"):
            assert main([command, str(path)]) == 2
            assert capsys.readouterr().err.count("\n") == 1


def test_what_is_no_sif_is_bad_input_where_no_engine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LUMIIMG_ENGINE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "text").write_text("x" * 1000)
    assert main(["verify", str(tmp_path / "text")]) == 2
    assert "text" in capsys.readouterr().err
    assert main(["verify", str(sif(tmp_path / "x.sif", (1, 0x4001)))]) == 4
