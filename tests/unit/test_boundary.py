"""`bind`, `explain` and `check --host`: what must come from a machine, tried in the loader model.

The libraries are stand-ins (tests/shared/fabric_builder.py) with all that the loader reads.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lumiimg.cli.main import main
from lumiimg.core.findings import Severity
from lumiimg.elf import ElfFacts, FoundBy, LoadedObject
from lumiimg.elf.facts import VersionNeed
from lumiimg.fabric.path import HOST_LIB_DIR, Fabric
from lumiimg.host.bind import SolvedManifest
from lumiimg.host.container_view import without_host_binds
from lumiimg.host.manifest import Loaded, Refusal, margins_of
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import HostFiles, write_snapshot
from lumiimg.image import open_image
from lumiimg.report.views.binds import attempts
from tests.shared import fabric_builder
from tests.shared.elf_builder import library, rpath
from tests.shared.fabric_builder import PLUGIN, RCCL, snapshot, versioned
from tests.shared.node_answers import FILES
from tests.shared.programs import unwrapped

PRIVATE = "/opt/lumiimg/host"
CRAY = "opt/cray/libfabric/1.22.0/lib64"
USR = "usr/lib64"
LIBC = "lib64/libc.so.6"


LEAST = "libcxi libfabric libjson-c libnl-3"


class Asked:
    """An image and a node, and the commands that judge them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.root = folder / "image"
        self.host = folder / "host"
        self.node = folder / "host.json"

    def image(self, name: str = "image", **words: Any) -> Path:
        self.root = fabric_builder.image(self.folder / name, **words)
        return self.root

    def machine(self, **words: Any) -> Path:
        """Make another node; it is not scanned yet."""
        self.host = fabric_builder.host(self.folder / "other", **words)
        return self.host

    def scan(self, *include: str) -> None:
        self.node = snapshot(self.host, *include)

    def says(self, **fields: object) -> None:
        """Change fields of the snapshot."""
        self.node.write_text(json.dumps(json.loads(self.node.read_text()) | fields))

    def run(self, *words: str | Path, host: bool = True) -> tuple[int, str, str]:
        """Return the exit code, standard output, and standard error."""
        code = main([*map(str, words), *(["--host", str(self.node)] if host else [])])
        out, err = self.capsys.readouterr()
        assert "\x1b" not in out + err
        return code, out, err

    def bind(self, code: int, binds: str | None = None, fabric: str = "host", refused: str = "") -> dict[str, Any]:
        """Compare the answer of `bind` with library names up to `.so`, and with the needs of the last refused one."""
        found, out, _ = self.run("bind", self.root, "--json")
        data: dict[str, Any] = json.loads(out)
        assert (found, data["schema"]) == (code, 1)
        assert not refused or data["refusals"][-1]["need"] == refused
        if binds is not None:
            bound = sorted(Path(bind["target"]).name.partition(".so")[0] for bind in data["binds"])
            assert (" ".join(bound), data["fabric"]) == (binds, fabric)
        return data

    def explain(self, *, host: bool = True) -> tuple[int, dict[str, Any], str]:
        code, out, err = self.run("explain", self.root, "--json", host=host)
        return code, json.loads(out), err

    def check(self, *, host: bool = True) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return the exit code, and the findings by name."""
        code, out, _ = self.run("check", self.root, "--level", "static", "--json", host=host)
        return code, {finding["id"]: finding for finding in json.loads(out)["findings"]}

    def verdicts(self) -> tuple[int, int, int]:
        """Return the exit codes of all three commands, which must not contradict one another."""
        bind, _, reported = self.run("bind", self.root)
        explain, check = self.run("explain", self.root)[0], self.check()[0]
        assert explain != 0 or check == 0, "explain is greener than check"
        assert bind != 0 or check == 0 or "not use the fabric" in unwrapped(reported), "bind hides what check says"
        return bind, explain, check

    def text(self, style: str, *words: str) -> str:
        code, out, _ = self.run("bind", self.root, "--format", style, *words)
        assert code == 0
        return out


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    """An image that is not made yet, and a node with glibc 2.38 whose libraries need exactly that."""
    found = Asked(tmp_path, capsys)
    fabric_builder.host(found.host)
    found.scan()
    return found


def own(image: Path, name: str, *defines: str, **needs: Any) -> Path:
    """Put a library into an image or a node."""
    return versioned(image / USR / name, defines=defines, **needs)


def libfabric(host: Path, needs: dict[Path, tuple[str, ...]], *defines: str) -> None:
    """Put another libfabric into a node."""
    name = "libfabric.so.1"
    versioned(host / CRAY / f"{name}.27.0", soname=name, defines=defines or ("FABRIC_1.7",), needs=needs)


def test_a_library_of_the_image_is_not_bound_over_unless_it_is_too_old(asked: Asked) -> None:
    image = asked.image()
    own(image, "libjson-c.so.5", "JSONC_0.14")
    asked.bind(0, "libcxi libfabric libnl-3")
    own(image, "libjson-c.so.5", "JSONC_0.13")
    data = asked.bind(0, LEAST)
    assert "needs JSONC_0.14" in next(entry["reason"] for entry in data["binds"] if "json" in entry["target"])


def test_an_image_that_brings_its_own_fabric_needs_nothing(asked: Asked) -> None:
    image = asked.image(glibc=35)
    cxi = own(image, "libcxi.so.1", "LIBCXI_1.5")
    own(image, "libfabric.so.1", "FABRIC_1.3", needs={cxi: ("LIBCXI_1.5",)})
    assert asked.bind(0, "", "bundled")["environment"] == {}
    assert "nothing has to be bound" in asked.text("shell")


def test_a_libfabric_of_the_image_without_the_provider_is_replaced_where_the_plugin_lets_it(asked: Asked) -> None:
    own(asked.image(), "libfabric.so.1", "FABRIC_1.3")
    refusal = asked.bind(0, LEAST)["refusals"][0]
    assert (refusal["need"], "was built without it" in refusal["have"]) == ("the cxi provider", True)
    # DT_RPATH precedes LD_LIBRARY_PATH: a claim that the host's is used would be wrong
    image = asked.image("tied")
    tied = versioned(image / "opt/lf/libfabric.so.1", defines=("FABRIC_1.3",))
    library(image / USR / "librccl-net.so", tied, *rpath("/opt/lf"), source=PLUGIN)
    refusals = asked.bind(1, "", "none")["refusals"]
    assert {refusal["need"] for refusal in refusals} == {"the cxi provider"}


def test_without_a_plugin_it_is_about_libfabric_alone_unless_the_host_has_one(asked: Asked) -> None:
    asked.image(plugin=False)
    assert "this covers libfabric only" in " ".join(asked.bind(0, LEAST)["notes"])
    reported = unwrapped(asked.run("bind", asked.root)[2])
    assert "RCCL would not use the fabric: no net plugin: nothing called librccl-net.so is in the image" in reported
    assert asked.verdicts() == (0, 1, 1)
    file = "opt/plugin/lib/librccl-net.so"
    versioned(asked.host / file, needs={asked.host / CRAY / "libfabric.so.1": ("FABRIC_1.3",)}, source=PLUGIN)
    asked.scan(f"/{file}")
    assert asked.bind(0, f"{LEAST} librccl-net")["notes"] == []


def test_a_provider_of_the_host_in_a_file_is_bound_with_its_libfabric(asked: Asked) -> None:
    asked.image()
    asked.host = asked.folder / "in-a-file"
    libc: dict[Path, tuple[str, ...]] = {fabric_builder.c_library(asked.host, 38): ("GLIBC_2.14",)}
    cxi = own(asked.host, "libcxi.so.1", "LIBCXI_1.4", needs=libc)
    folder = asked.host / "opt/cray/libfabric/2.1/lib64"
    versioned(folder / "libfabric.so.1", defines=("FABRIC_1.3",), needs=libc)
    versioned(folder / "libfabric/libcxi-fi.so", needs={cxi: ("LIBCXI_1.4",)})
    asked.scan()
    data = asked.bind(0, "libcxi libcxi-fi libfabric")
    assert f"{PRIVATE}/libfabric/libcxi-fi.so" in {entry["target"] for entry in data["binds"]}
    assert data["environment"]["FI_PROVIDER_PATH"]["value"] == f"{PRIVATE}/libfabric"
    (folder / "libfabric").rename(asked.host / "opt/providers")
    for value, code in ((None, 3), ("/opt/providers", 0)):
        with open_image(asked.host) as node:
            found = scan_host({"FI_PROVIDER_PATH": value} if value else {}, root=node.root)
        write_snapshot(found, asked.node)
        assert (HostFiles(found).fabric is not None) is (value is not None)
        data = asked.bind(code)
    sources = {Path(entry["target"]).name: entry["source"] for entry in data["binds"]}
    assert sources["libcxi-fi.so"] == "/opt/providers/libcxi-fi.so"


def test_without_a_node_the_account_has_what_libfabric_opens_and_no_broken_plugin_is_missing(asked: Asked) -> None:
    root = asked.image()
    folder = root / "usr/lib64"
    libc: dict[Path, tuple[str, ...]] = {root / "lib64/libc.so.6": ("GLIBC_2.14",)}
    cxi = own(root, "libcxi.so.1", "LIBCXI_1.4", needs=libc)
    versioned(folder / "libfabric.so.1", defines=("FABRIC_1.3",), needs=libc)
    provider = versioned(folder / "libfabric/libcxi-fi.so", needs={cxi: ("LIBCXI_1.4",)}, source="int fi_prov_ini;")
    data = json.loads(asked.run("explain", root, "--json", host=False)[1])
    assert f"/{provider.relative_to(root)}" in {entry["path"] for entry in data["loaded"]}
    plugin = folder / "librccl-net.so"
    plugin.write_bytes(plugin.read_bytes()[:100])
    data = json.loads(asked.run("explain", root, "--json", host=False)[1])
    assert (data["decision"], data["missing"]) == ("refused", [])
    plugin.unlink()
    assert json.loads(asked.run("explain", root, "--json", host=False)[1])["missing"] == ["librccl-net.so"]


def test_parts_of_the_c_library_are_never_bound(asked: Asked) -> None:
    asked.image()
    host = asked.machine(needs_glibc=34)
    anl = own(host, "libanl.so.1", "GLIBC_2.33", needs={host / LIBC: ("GLIBC_PRIVATE",)})
    libfabric(host, {host / USR / "libcxi.so.1": ("LIBCXI_1.4",), anl: ("GLIBC_2.33",)})
    asked.scan()
    asked.bind(1, refused="libanl.so.1")


def test_libraries_of_another_kind_of_machine_are_never_bound(asked: Asked) -> None:
    asked.image()
    data = json.loads(asked.node.read_text())
    for recorded in data["libraries"]:
        recorded["facts"]["machine"] = 183  # ARM's 64 bits
    asked.says(architecture="aarch64", libraries=data["libraries"])
    refusal = asked.bind(1, refused="libfabric.so.1")["refusals"][-1]
    assert refusal["have"] == "the host's is for another architecture"


def test_an_image_that_has_a_file_where_the_folder_goes_is_refused(asked: Asked) -> None:
    (asked.image() / "opt/lumiimg").write_text("")
    asked.bind(1, refused=f"the folder {PRIVATE}")


REFUSED = {
    "glibc=35": (
        "librccl-net.so -> libfabric.so.1 (host) needs GLIBC_2.38 of libc.so.6",
        "/lib64/libc.so.6 has up to GLIBC_2.35",
        "bundle the fabric",
        "Ubuntu 24.04 (glibc 2.39)",
    ),
    "fabric=FABRIC_1.8": (
        "needs FABRIC_1.8 of libfabric.so.1",
        f"/{CRAY}/libfabric.so.1 has up to FABRIC_1.7",
        "headers of the host's libfabric",
    ),
}
"""The options of an image, and what is reported about it."""


def test_a_refusal_names_both_versions_and_stops_whoever_does_not_look_at_the_exit_code(asked: Asked) -> None:
    for made, expected in REFUSED.items():
        word, _, value = made.partition("=")
        asked.image(made, **{word: int(value) if value.isdecimal() else value})
        code, out, err = asked.run("bind", asked.root)
        assert code == 1
        assert all(each in unwrapped(err) for each in expected), err
        assert "Ubuntu 22.04" not in unwrapped(err)
        assert subprocess.run(["sh", "-c", out], capture_output=True, check=False).returncode == 1
        code, quiet_out, err = asked.run("bind", asked.root, "--quiet")
        assert (code, quiet_out, err.count("\n")) == (1, out, 1)
        for style, stop in {"shell": "false", "singularity": "--lumiimg-bind-refused"}.items():
            code, out, _ = asked.run("bind", asked.root, "--format", style)
            assert (code, stop in out) == (1, True)


def test_two_majors_in_one_process_are_named_and_leave_the_check_open(asked: Asked) -> None:
    asked.machine(json_c="libjson-c.so.3")
    asked.scan()
    image = asked.image()
    json_c = versioned(image / USR / "libjson-c.so.5", defines=("JSONC_0.14",))
    library(image / "opt/rocm/lib/librccl.so.1", json_c, image / LIBC, source=RCCL)
    assert any("2 copies of libjson-c in one process" in note for note in asked.bind(0)["notes"])
    code, found = asked.check()
    assert (code, found["fabric.mixed"]["severity"]) == (3, "unknown")


# -- what must not look good --


def test_libcxi_somewhere_in_the_process_is_no_provider(asked: Asked) -> None:
    """A libfabric without the provider uses TCP, whatever else has loaded libcxi."""
    image = asked.image()
    linked = own(image, "libfabric.so.1", "FABRIC_1.3"), own(image, "libcxi.so.1", "LIBCXI_1.5")
    library(image / USR / "librccl-net.so", *linked, source=PLUGIN)
    code, found = asked.check(host=False)
    assert (code, "provider.no-cxi" in found) == (3, True)
    asked.bind(0, LEAST)
    fabric_builder.c_library(asked.folder / "laptop", 39)
    asked.node = snapshot(asked.folder / "laptop")
    assert asked.verdicts() == (3, 3, 3)


# -- formats --


def exported(script: str, **variables: str) -> dict[str, str]:
    """Return the variables of a shell that has evaluated the exports."""
    env = {"PATH": "/usr/bin", **variables}
    done = subprocess.run(["sh", "-euc", script + "env"], capture_output=True, text=True, check=True, env=env)
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())


def test_a_site_adds_what_every_container_there_gets(asked: Asked) -> None:
    asked.image()
    text = asked.text("singularity", "--site", "lumi")
    assert "--bind /var/spool/slurmd" in text
    assert "--bind /scratch" in text
    code, _, err = asked.run("bind", asked.root, "--site", "lumo")
    assert (code, "did you mean lumi" in err) == (2, True)


def test_what_the_engine_of_the_machine_forbids_is_refused_by_all(asked: Asked) -> None:
    image = asked.image()
    for settings, words in (
        ({"user bind control": "no"}, "this machine's engine refuses binds by users"),
        ({"enable overlay": "no", "enable underlay": "no"}, "the engine here does not create it"),
    ):
        asked.says(engine={"name": "SingularityCE", "version": "4.1.3", "settings": settings})
        found = asked.bind(1)
        assert (found["decision"], words in found["refusals"][0]["have"]) == ("refused", True)
        assert asked.verdicts() == (1, 1, 1)
    (image / PRIVATE[1:]).mkdir(parents=True)
    assert asked.verdicts() == (0, 0, 0)


def test_a_hidden_nic_is_bound_and_apptainer_gets_its_own_names(asked: Asked) -> None:
    asked.image()
    engine = {"name": "Apptainer", "version": "1.4.5", "settings": {"mount dev": "minimal"}}
    asked.says(engine=engine, devices=["/dev/cxi0", "/dev/kfd"])
    text = asked.text("shell")
    assert ",/dev/cxi0" in text
    assert "/dev/kfd" not in text
    assert "export APPTAINERENV_LD_LIBRARY_PATH=" in text


def test_sourcing_twice_binds_once_and_keeps_what_the_user_has(asked: Asked) -> None:
    asked.says(engine={"name": "Apptainer", "version": "1.4.5", "settings": {}})
    asked.image()
    script = asked.text("shell")
    # Apptainer ignores the older name once its own is set
    once = exported(script, SINGULARITY_BIND="/mine")["APPTAINER_BIND"]
    assert once.startswith("/mine,/opt/cray/")
    assert f"/usr/lib64/libcxi.so.1:{PRIVATE}/libcxi.so.1" in once.split(",")
    assert exported(script)["APPTAINERENV_LD_LIBRARY_PATH"] == f"{PRIVATE}:/opt/rocm/lib"
    assert exported(script + script, SINGULARITY_BIND="/mine")["APPTAINER_BIND"] == once


@pytest.mark.threat
def test_nothing_that_an_image_says_is_evaluated(asked: Asked) -> None:
    image = asked.image()
    for value in ("/a\nexec touch x", "/a$(touch x)", "/a`touch x`", "/a\x1b[31m", '/a"', "/a\\"):
        (image / ".singularity.d/env/90-environment.sh").write_text(f"export LD_LIBRARY_PATH='/opt/rocm/lib:{value}'\n")
        for style in ("shell", "singularity"):
            code, out, err = asked.run("bind", image, "--format", style)
            assert (code, out) == (1, ""), value
            assert "contains a character that engines or shells evaluate" in unwrapped(err), value


@pytest.mark.threat
def test_a_host_whose_libraries_go_on_for_ever_is_refused(asked: Asked) -> None:
    data = json.loads(asked.node.read_text())
    pattern = next(entry for entry in data["libraries"] if entry["path"].endswith("libnl-3.so.200"))
    entry = next(entry for entry in data["entries"] if entry["role"] == "libfabric")
    for number in range(80):
        facts = pattern["facts"] | {"soname": f"libx{number}.so", "needed": [f"libx{number + 1}.so"]}
        path = f"/usr/lib64/libx{number}.so"
        data["libraries"].append(pattern | {"path": path, "facts": facts})
        entry["closure"][f"libx{number}.so"] = path
    fabric = next(entry for entry in data["libraries"] if "libfabric" in entry["path"])
    fabric["facts"]["needed"].append("libx0.so")
    asked.says(**data)
    asked.image()
    asked.bind(1, refused="a dependency chain that ends")


# -- explain, check --


def test_what_an_image_sets_is_reported_by_all_commands(asked: Asked) -> None:
    image, page = asked.image(), asked.folder / "page.html"
    (image / ".singularity.d/env/91-more.sh").write_text("export NCCL_NET=Socket FI_PROVIDER=tcp\n")
    code, out, err = asked.run("explain", image, "--json", "--html", page)
    data = json.loads(out)
    assert (code, ": NO: " in unwrapped(err)) == (1, True)
    refused = {finding["id"] for finding in data["findings"] if finding["severity"] == "problem"}
    assert refused == {"network.forced", "provider.excluded"}
    assert any("env -u NCCL_NET" in remedy for remedy in data["remedies"])
    assert page.read_text().count("[network.forced, static]") == 1
    node = f"--host {asked.node}"
    for words in (f"bind {image} --json {node}", f"bind {image} {node}", f"job {image} --site lumi {node} -- true"):
        code, out, err = asked.run(*words.split(), host=False)
        assert code == 0
        assert "with these binds RCCL would not use the fabric: NCCL_NET=Socket" in unwrapped(out + err), words


def test_a_bind_of_the_user_over_what_is_searched_leaves_the_files_answer_open(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.image()
    monkeypatch.setenv("SINGULARITY_BIND", f"/scratch,/var/spool/slurmd,/usr/lib64/libcxi.so.1:{PRIVATE}/libcxi.so.1")
    assert asked.verdicts()[2] == 0
    monkeypatch.setenv("SINGULARITY_BIND", "/scratch,/opt/other:/opt/rocm")
    code, found = asked.check()
    assert (code, found["image.binds"]["evidence"]) == (3, ["/opt/other:/opt/rocm"])


# -- the account: attempts at binds, and the margins between two libraries --

NEEDS = "GLIBC_2.38 of libc.so.6", "libjson-c.so.5"
FACTS = ElfFacts(machine=62, type=3, is_dynamic=True)


def test_a_search_path_of_an_earlier_manifest_is_left_out() -> None:
    ours = {"SINGULARITYENV_LD_LIBRARY_PATH": f"{HOST_LIB_DIR}:/usr/lib", "APPTAINERENV_LD_LIBRARY_PATH": HOST_LIB_DIR}
    kept = {
        "SINGULARITYENV_LD_LIBRARY_PATH": f"/usr/lib:{HOST_LIB_DIR}",
        "PATH": HOST_LIB_DIR,
        "A_ENV_LD_LIBRARY_PATH": "",
    }
    assert without_host_binds(ours | {"HOME": "/root"}) == {"HOME": "/root"}
    assert without_host_binds(kept) == kept


def item(name: str, *needs: tuple[str, str], defines: tuple[str, ...] = (), host: str | None = None) -> Loaded:
    wanted = tuple(VersionNeed(file, version, weak=False) for file, version in needs)
    facts = structs.replace(FACTS, version_needs=wanted, version_definitions=defines, soname=name)
    return Loaded(LoadedObject(name, f"/lib/{name}", facts, FoundBy.DEFAULT, None, "/lib"), host)


def test_each_family_of_versions_has_a_margin_of_its_own() -> None:
    fabric = item("libfabric.so.1", defines=("FABRIC_1.0", "FABRIC_1.7", "ABI_2.0"), host="/usr/lib64/libfabric.so.1")
    plugin = item(
        "librccl-net.so",
        ("libfabric.so.1", "FABRIC_1.3"),
        ("libfabric.so.1", "ABI_1.1"),
        ("libfabric.so.1", "GONE_1.0"),
    )
    assert [(m.family, m.need, m.have) for m in margins_of([plugin, fabric])] == [
        ("FABRIC", "1.3", "1.7"),
        ("ABI", "1.1", "2.0"),
    ]


def test_a_version_that_a_library_would_only_like_to_have_makes_no_margin_smaller() -> None:
    """The loader ignores a weak need (VER_FLG_WEAK) that is not met."""
    libc = item("libc.so.6", defines=("GLIBC_2.34", "GLIBC_2.38"))
    plugin = item("librccl-net.so", ("libc.so.6", "GLIBC_2.34"), host="/usr/lib64/librccl-net.so")
    weak = VersionNeed("libc.so.6", "GLIBC_2.39", weak=True)
    facts = structs.replace(plugin.object.facts, version_needs=(*plugin.object.facts.version_needs, weak))
    softer = replace(plugin, object=replace(plugin.object, facts=facts))
    hard, soft = ([margin.sentence for margin in margins_of([one, libc])] for one in (plugin, softer))
    assert soft == hard != []


@pytest.mark.parametrize("host_has_fabric", [True, False])
def test_each_attempt_at_binds_is_shown_with_what_is_needed_and_what_there_is(*, host_has_fabric: bool) -> None:
    tried = tuple(Refusal("the host's", "/lib/a.so", need, "there is none", ("a.so",), "") for need in NEEDS)
    manifest = SolvedManifest(Fabric.NONE, refusals=tried, host_has_fabric=host_has_fabric)
    fit = replace(FILES, host="nid1", manifest=manifest)
    lacks = [] if host_has_fabric else ["the snapshot of nid1 has no libfabric with the cxi provider"]
    severity = Severity.PROBLEM if host_has_fabric else Severity.UNKNOWN
    shown = [*lacks, *(f"the host's: a.so needs {need}; there is none" for need in NEEDS)]
    assert [(item.severity, item.text) for item in attempts(fit)] == [(severity, text) for text in shown]
    assert fit.refusals == tried
    assert replace(fit, manifest=replace(manifest, fabric=Fabric.HOST)).refusals == ()
