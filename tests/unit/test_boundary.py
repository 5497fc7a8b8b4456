"""`bind`, `explain` and `check --host`: what must come from a machine, tried in the model of the loader.

The libraries are stand-ins (tests/shared/fabric_builder.py): the loader looks at nothing else of them.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from tests.shared import fabric_builder
from tests.shared.elf_builder import library, rpath
from tests.shared.fabric_builder import snapshot, versioned
from tests.shared.programs import unwrapped
from tests.shared.python_image import environment, python, venv

Capture = pytest.CaptureFixture[str]
PRIVATE = "/opt/lumiimg/host"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The snapshot of a node with glibc 2.38 whose libraries need just that."""
    return snapshot(fabric_builder.host(tmp_path / "host"))


def bind(image: Path, node: Path, capsys: Capture) -> tuple[int, dict[str, Any]]:
    code = main(["bind", str(image), "--host", str(node), "--json"])
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert data["schema"] == 1
    return code, data


def names(data: dict[str, Any]) -> list[str]:
    return sorted(Path(bind["target"]).name for bind in data["binds"])


def verdicts(image: Path, node: Path, capsys: Capture) -> tuple[int, int, int]:
    """Ask all three commands."""
    ask = ["bind"], ["explain"], ["check", "--level", "static"]
    codes, said = [], []
    for words in ask:
        codes.append(main([*words, str(image), "--host", str(node)]))
        said.append(capsys.readouterr().err)
    assert codes[1] != 0 or codes[2] == 0, "explain is greener than check"
    assert codes[0] != 0 or codes[2] == 0 or "not use the fabric" in unwrapped(said[0]), "bind hides what check says"
    return codes[0], codes[1], codes[2]


def test_an_image_with_a_newer_c_library_gets_the_least_list(tmp_path: Path, node: Path, capsys: Capture) -> None:
    code, data = bind(fabric_builder.image(tmp_path / "image", glibc=41), node, capsys)
    assert (code, data["decision"], data["fabric"]) == (0, "ok", "host")
    assert names(data) == ["libcxi.so.1", "libfabric.so.1", "libjson-c.so.5", "libnl-3.so.200"]
    fabric = next(entry for entry in data["binds"] if entry["target"] == f"{PRIVATE}/libfabric.so.1")
    assert fabric["source"] == "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1"
    nl = next(entry for entry in data["binds"] if entry["target"].endswith("libnl-3.so.200"))
    assert nl["chain"][1:] == ["librccl-net.so", "libfabric.so.1", "libcxi.so.1", "libnl-3.so.200"]
    assert nl["reason"] == "libcxi.so.1 needs it, and the image has none"
    assert data["environment"]["LD_LIBRARY_PATH"]["value"] == f"{PRIVATE}:/opt/rocm/lib"
    loaded = {item["name"]: item for item in data["loaded"]}
    assert loaded["libcxi.so.1"]["path"] == f"{PRIVATE}/libcxi.so.1"
    assert loaded["libcxi.so.1"]["host_path"] == "/usr/lib64/libcxi.so.1"
    assert loaded["libc.so.6"] == {"name": "libc.so.6", "path": "/lib64/libc.so.6", "host_path": None}


def test_what_the_image_has_itself_is_not_bound(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    versioned(image / "usr/lib64/libjson-c.so.5", defines=("JSONC_0.14",))
    _, data = bind(image, node, capsys)
    assert names(data) == ["libcxi.so.1", "libfabric.so.1", "libnl-3.so.200"]


def test_a_library_of_the_image_that_is_too_old_gives_way(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    versioned(image / "usr/lib64/libjson-c.so.5", defines=("JSONC_0.13",))
    code, data = bind(image, node, capsys)
    assert code == 0
    assert "libjson-c.so.5" in names(data)
    reason = next(entry["reason"] for entry in data["binds"] if "json" in entry["target"])
    assert "needs JSONC_0.14" in reason


def test_an_image_with_an_older_c_library_is_refused_with_both_numbers(
    tmp_path: Path, node: Path, capsys: Capture
) -> None:
    image = fabric_builder.image(tmp_path / "image", glibc=35)
    assert main(["bind", str(image), "--host", str(node)]) == 1
    out, err = capsys.readouterr()
    err = unwrapped(err)
    assert subprocess.run(["sh", "-c", out], capture_output=True, check=False).returncode == 1
    assert "librccl-net.so -> libfabric.so.1 (host) needs GLIBC_2.38 of libc.so.6" in unwrapped(err)
    assert "/lib64/libc.so.6 has up to GLIBC_2.35" in unwrapped(err)
    assert "bundle the fabric" in unwrapped(err)
    assert "Ubuntu 24.04 (glibc 2.39)" in unwrapped(err)
    assert "Ubuntu 22.04" not in unwrapped(err)


def test_only_a_library_below_libfabric_needs_the_newer_c_library(tmp_path: Path, capsys: Capture) -> None:
    host = fabric_builder.host(tmp_path / "host", needs_glibc=34)
    libc = host / "lib64/libc.so.6"
    versioned(host / "usr/lib64/libnl-3.so.200", defines=("libnl_3",), needs={libc: ("GLIBC_2.38",)})
    node = snapshot(host)
    image = fabric_builder.image(tmp_path / "image", glibc=35)
    code, data = bind(image, node, capsys)
    assert code == 1
    assert data["refusals"][-1]["chain"][-2:] == ["libcxi.so.1 (host)", "libnl-3.so.200 (host)"]
    # an own copy that is good enough takes the place of the host's
    versioned(image / "usr/lib64/libnl-3.so.200", defines=("libnl_3",))
    code, data = bind(image, node, capsys)
    assert (code, names(data)) == (0, ["libcxi.so.1", "libfabric.so.1", "libjson-c.so.5"])


def test_a_library_that_two_others_need_is_bound_once(tmp_path: Path, capsys: Capture) -> None:
    host = fabric_builder.host(tmp_path / "host")
    usr, libc = host / "usr/lib64", host / "lib64/libc.so.6"
    low = versioned(usr / "liblow.so.1", defines=("LOW_1",), needs={libc: ("GLIBC_2.14",)})
    json = versioned(usr / "libjson-c.so.5", defines=("JSONC_0.14",), needs={low: ("LOW_1",)})
    nl = versioned(usr / "libnl-3.so.200", defines=("libnl_3",), needs={low: ("LOW_1",), json: ("JSONC_0.14",)})
    cxi = versioned(usr / "libcxi.so.1", defines=("LIBCXI_1.4",), needs={nl: ("libnl_3",)})
    fabric = host / "opt/cray/libfabric/1.22.0/lib64/libfabric.so.1"
    own = tuple(f"FABRIC_1.{n}" for n in range(8))
    versioned(fabric.resolve(), soname=fabric.name, defines=own, needs={cxi: ("LIBCXI_1.4",), json: ("JSONC_0.14",)})
    code, data = bind(fabric_builder.image(tmp_path / "image"), snapshot(host), capsys)
    assert (code, names(data)) == (
        0,
        ["libcxi.so.1", "libfabric.so.1", "libjson-c.so.5", "liblow.so.1", "libnl-3.so.200"],
    )


def test_a_plugin_built_with_newer_headers_is_refused(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image", fabric="FABRIC_1.8")
    assert main(["bind", str(image), "--host", str(node)]) == 1
    err = unwrapped(capsys.readouterr().err)
    assert "needs FABRIC_1.8 of libfabric.so.1" in unwrapped(err)
    assert "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1 has up to FABRIC_1.7" in unwrapped(err)
    assert "headers of the host's libfabric" in unwrapped(err)


def test_an_image_that_brings_its_own_fabric_needs_nothing(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image", glibc=35)
    cxi = versioned(image / "usr/lib64/libcxi.so.1", defines=("LIBCXI_1.5",))
    versioned(image / "usr/lib64/libfabric.so.1", defines=("FABRIC_1.3",), needs={cxi: ("LIBCXI_1.5",)})
    code, data = bind(image, node, capsys)
    assert (code, data["fabric"], data["binds"], data["environment"]) == (0, "bundled", [], {})
    assert main(["bind", str(image), "--host", str(node)]) == 0
    assert "nothing has to be bound" in capsys.readouterr().out


def test_a_libfabric_of_the_image_without_the_provider_is_replaced(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    versioned(image / "usr/lib64/libfabric.so.1", defines=("FABRIC_1.3",))
    code, data = bind(image, node, capsys)
    assert (code, data["fabric"]) == (0, "host")
    assert data["refusals"][0]["need"] == "the cxi provider"
    assert "was built without it" in data["refusals"][0]["have"]


def test_a_plugin_that_an_rpath_ties_to_the_images_libfabric_is_refused(
    tmp_path: Path, node: Path, capsys: Capture
) -> None:
    """LD_LIBRARY_PATH does not reach past a DT_RPATH: to say that the host's is taken would be wrong."""
    image = fabric_builder.image(tmp_path / "image")
    own = versioned(image / "opt/lf/libfabric.so.1", defines=("FABRIC_1.3",))
    library(image / "usr/lib64/librccl-net.so", own, *rpath("/opt/lf"), source=fabric_builder.PLUGIN)
    code, data = bind(image, node, capsys)
    assert (code, data["fabric"]) == (1, "none")
    assert all(refusal["need"] == "the cxi provider" for refusal in data["refusals"])


def test_without_a_plugin_it_is_about_libfabric_alone_and_says_so(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image", plugin=False)
    code, data = bind(image, node, capsys)
    assert (code, data["fabric"]) == (0, "host")
    assert any("this is about libfabric alone" in note for note in data["notes"])
    assert main(["bind", str(image), "--host", str(node)]) == 0
    assert "RCCL would not use the fabric: a file called librccl-net.so is needed" in unwrapped(capsys.readouterr().err)
    assert explain(image, capsys, "--host", node)[0] == 1
    assert main(["check", str(image), "--level", "static", "--host", str(node)]) == 1


def test_a_plugin_of_the_host_serves_an_image_without_one(tmp_path: Path, capsys: Capture) -> None:
    host = fabric_builder.host(tmp_path / "host")
    fabric = host / "opt/cray/libfabric/1.22.0/lib64/libfabric.so.1"
    plugin = host / "opt/plugin/lib/librccl-net.so"
    versioned(plugin, needs={fabric: ("FABRIC_1.3",)}, source=fabric_builder.PLUGIN)
    node = snapshot(host, "/opt/plugin/lib/librccl-net.so")
    code, data = bind(fabric_builder.image(tmp_path / "image", plugin=False), node, capsys)
    assert code == 0
    assert "librccl-net.so" in names(data)
    assert data["notes"] == []


def test_two_majors_in_one_process_are_named_and_leave_the_check_open(tmp_path: Path, capsys: Capture) -> None:
    node = snapshot(fabric_builder.host(tmp_path / "host", json_c="libjson-c.so.3"))
    image = fabric_builder.image(tmp_path / "image")
    json_c = versioned(image / "usr/lib64/libjson-c.so.5", defines=("JSONC_0.14",))
    library(image / "opt/rocm/lib/librccl.so.1", json_c, image / "lib64/libc.so.6", source=fabric_builder.RCCL)
    code, data = bind(image, node, capsys)
    assert code == 0
    assert any("2 copies of libjson-c in one process" in note for note in data["notes"])
    assert main(["check", str(image), "--level", "static", "--host", str(node), "--json"]) == 3
    found = {finding["id"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert found["fabric.mixed"]["severity"] == "unknown"


# -- what must not look good --


def test_libcxi_somewhere_in_the_process_is_no_provider(tmp_path: Path, node: Path, capsys: Capture) -> None:
    """A libfabric without the provider uses TCP, whatever else has loaded libcxi."""
    image = fabric_builder.image(tmp_path / "image")
    cxi = versioned(image / "usr/lib64/libcxi.so.1", defines=("LIBCXI_1.5",))
    own = versioned(image / "usr/lib64/libfabric.so.1", defines=("FABRIC_1.3",))
    library(image / "usr/lib64/librccl-net.so", own, cxi, source=fabric_builder.PLUGIN)
    assert main(["check", str(image), "--level", "static", "--json"]) == 3
    found = {finding["id"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert "provider.no-cxi" in found
    code, data = bind(image, node, capsys)
    assert (code, data["fabric"]) == (0, "host")
    assert "libfabric.so.1" in names(data)
    laptop = tmp_path / "laptop"
    fabric_builder.c_library(laptop, 39)
    assert verdicts(image, snapshot(laptop), capsys) == (3, 3, 3)


def test_a_provider_of_the_host_in_a_file_is_bound_with_its_libfabric(tmp_path: Path, capsys: Capture) -> None:
    host = tmp_path / "host"
    libc = fabric_builder.c_library(host, 38)
    cxi = versioned(host / "usr/lib64/libcxi.so.1", defines=("LIBCXI_1.4",), needs={libc: ("GLIBC_2.14",)})
    folder = host / "opt/cray/libfabric/2.1/lib64"
    versioned(folder / "libfabric.so.1", defines=("FABRIC_1.3",), needs={libc: ("GLIBC_2.14",)})
    versioned(folder / "libfabric/libcxi-fi.so", needs={cxi: ("LIBCXI_1.4",)})
    node = snapshot(host)
    code, data = bind(fabric_builder.image(tmp_path / "image"), node, capsys)
    assert code == 0
    targets = {entry["target"] for entry in data["binds"]}
    assert targets == {f"{PRIVATE}/{name}" for name in ("libfabric.so.1", "libcxi.so.1", "libfabric/libcxi-fi.so")}
    assert data["environment"]["FI_PROVIDER_PATH"]["value"] == f"{PRIVATE}/libfabric"


def test_an_own_libfabric_gets_the_hosts_libcxi_alone(tmp_path: Path, capsys: Capture) -> None:
    """The image's glibc is too old for the host's libfabric, and new enough for its libcxi."""
    host = fabric_builder.host(tmp_path / "host", needs_glibc=34)
    folder = host / "opt/cray/libfabric/1.22.0/lib64"
    libc, cxi = host / "lib64/libc.so.6", host / "usr/lib64/libcxi.so.1"
    needs: dict[Path, tuple[str, ...]] = {cxi: ("LIBCXI_1.4",), libc: ("GLIBC_2.38",)}
    versioned(folder / "libfabric.so.1.27.0", soname="libfabric.so.1", defines=("FABRIC_1.7",), needs=needs)
    node = snapshot(host)
    image = fabric_builder.image(tmp_path / "image", glibc=35)
    stub = versioned(tmp_path / "libcxi.so.1", defines=("LIBCXI_1.3",))
    versioned(image / "usr/lib64/libfabric.so.1", defines=("FABRIC_1.3",), needs={stub: ("LIBCXI_1.3",)})
    code, data = bind(image, node, capsys)
    assert (code, names(data)) == (0, ["libcxi.so.1", "libnl-3.so.200"])
    assert verdicts(image, node, capsys) == (0, 0, 0)


def test_parts_of_the_c_library_are_never_bound(tmp_path: Path, capsys: Capture) -> None:
    host = fabric_builder.host(tmp_path / "host", needs_glibc=34)
    libc = host / "lib64/libc.so.6"
    anl = versioned(host / "usr/lib64/libanl.so.1", defines=("GLIBC_2.33",), needs={libc: ("GLIBC_PRIVATE",)})
    cxi = host / "usr/lib64/libcxi.so.1"
    folder = host / "opt/cray/libfabric/1.22.0/lib64"
    needs: dict[Path, tuple[str, ...]] = {cxi: ("LIBCXI_1.4",), anl: ("GLIBC_2.33",)}
    versioned(folder / "libfabric.so.1.27.0", soname="libfabric.so.1", defines=("FABRIC_1.7",), needs=needs)
    image = fabric_builder.image(tmp_path / "image")
    code, data = bind(image, snapshot(host), capsys)
    assert code == 1
    assert data["refusals"][-1]["need"] == "libanl.so.1"


def test_ldd_takes_binds_out_of_a_snapshot(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    folder = "/opt/cray/libfabric/1.22.0/lib64"
    words = ["--host", str(node), "--bind", "/opt/cray,/usr/lib64/libcxi.so.1:/lib64/libcxi.so.1"]
    words += ["--env", f"LD_LIBRARY_PATH={folder}", "--json"]
    assert main(["ldd", str(image), *words, "/usr/lib64/librccl-net.so"]) == 1
    data = json.loads(capsys.readouterr().out)
    closure = data["files"]["/usr/lib64/librccl-net.so"]["closure"]
    assert closure["libfabric.so.1"] == f"{folder}/libfabric.so.1"
    assert closure["libcxi.so.1"] == "/lib64/libcxi.so.1"
    assert closure["libjson-c.so.5"] is None
    assert data["notes"] == ["of /opt/cray only the files that the snapshot records are seen"]


def test_an_image_that_has_a_file_where_the_folder_goes_is_refused(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    (image / "opt/lumiimg").write_text("")
    code, data = bind(image, node, capsys)
    assert (code, data["refusals"][-1]["need"]) == (1, f"the folder {PRIVATE}")


def test_a_machine_of_another_kind_is_told_so(tmp_path: Path, node: Path, capsys: Capture) -> None:
    data = json.loads(node.read_text())
    data["architecture"] = "aarch64"
    for entry in data["libraries"]:
        entry["facts"]["machine"] = 183
    node.write_text(json.dumps(data))
    code, found = bind(fabric_builder.image(tmp_path / "image"), node, capsys)
    assert (code, found["refusals"][-1]["have"]) == (1, "the host's are for aarch64")


# -- formats --


def text_of(style: str, image: Path, node: Path, capsys: Capture, *more: str) -> str:
    assert main(["bind", str(image), "--host", str(node), "--format", style, *more]) == 0
    return capsys.readouterr().out


def test_the_exports_are_what_a_shell_reads(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "an image; touch x")
    script = text_of("shell", image, node, capsys) + "env"
    done = subprocess.run(
        ["sh", "-euc", script], capture_output=True, text=True, check=True, env={"SINGULARITY_BIND": "/mine"}
    )
    variables = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    binds = variables["SINGULARITY_BIND"].split(",")
    assert binds[0] == "/mine"
    assert f"/usr/lib64/libcxi.so.1:{PRIVATE}/libcxi.so.1" in binds
    assert variables["SINGULARITYENV_LD_LIBRARY_PATH"] == f"{PRIVATE}:/opt/rocm/lib"


def test_options_of_an_engine_say_the_same(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    words = shlex.split(text_of("singularity", image, node, capsys))
    binds = [word for flag, word in zip(words[::2], words[1::2], strict=True) if flag == "--bind"]
    assert f"/usr/lib64/libcxi.so.1:{PRIVATE}/libcxi.so.1" in binds
    assert words[-2:] == ["--env", f"LD_LIBRARY_PATH={PRIVATE}:/opt/rocm/lib"]


def test_a_site_adds_what_every_container_there_gets(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    text = text_of("singularity", image, node, capsys, "--site", "lumi")
    assert "--bind /var/spool/slurmd" in text
    assert "--bind /scratch" in text
    assert main(["bind", str(image), "--host", str(node), "--site", "lumo"]) == 2
    assert "did you mean lumi" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"user bind control": "no"}, "the engine of this machine refuses those of users"),
        ({"enable overlay": "no", "enable underlay": "no"}, "the engine of this machine makes none"),
    ],
    ids=["no binds", "no targets"],
)
def test_what_the_engine_of_the_machine_forbids_is_refused_by_all(
    tmp_path: Path, node: Path, capsys: Capture, settings: dict[str, str], words: str
) -> None:
    data = json.loads(node.read_text())
    data["engine"] = {"name": "SingularityCE", "version": "4.1.3", "settings": settings}
    node.write_text(json.dumps(data))
    image = fabric_builder.image(tmp_path / "image")
    code, found = bind(image, node, capsys)
    assert (code, found["decision"]) == (1, "refused")
    assert words in found["refusals"][0]["have"]
    assert verdicts(image, node, capsys) == (1, 1, 1)
    if "enable overlay" in settings:
        (image / PRIVATE[1:]).mkdir(parents=True)
        assert verdicts(image, node, capsys) == (0, 0, 0)


@pytest.mark.parametrize(("engine", "codes"), [("SingularityCE", (0, 0, 0)), ("Apptainer", (0, 1, 1))])
def test_what_is_told_under_apptainers_name_does_not_count_where_singularityce_is(
    engine: str,
    codes: tuple[int, int, int],
    tmp_path: Path,
    node: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = json.loads(node.read_text())
    data["engine"] = {"name": engine, "version": "4.1.3" if engine == "SingularityCE" else "1.4.5", "settings": {}}
    node.write_text(json.dumps(data))
    image = fabric_builder.image(tmp_path / "image")
    monkeypatch.setenv("APPTAINERENV_NCCL_NET_PLUGIN", "no-such")
    assert verdicts(image, node, capsys) == codes


def test_a_hidden_nic_is_bound_and_apptainer_gets_its_own_names(tmp_path: Path, node: Path, capsys: Capture) -> None:
    data = json.loads(node.read_text())
    data["engine"] = {"name": "Apptainer", "version": "1.4.5", "settings": {"mount dev": "minimal"}}
    data["devices"] = ["/dev/cxi0", "/dev/kfd"]
    node.write_text(json.dumps(data))
    text = text_of("shell", fabric_builder.image(tmp_path / "image"), node, capsys)
    assert ",/dev/cxi0" in text
    assert "/dev/kfd" not in text
    assert "export APPTAINERENV_LD_LIBRARY_PATH=" in text


def exported(script: str, environment: dict[str, str]) -> dict[str, str]:
    done = subprocess.run(
        ["sh", "-euc", script + "env"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin", **environment},
    )
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())


def test_sourcing_twice_binds_once_and_keeps_what_the_user_has(tmp_path: Path, node: Path, capsys: Capture) -> None:
    data = json.loads(node.read_text())
    data["engine"] = {"name": "Apptainer", "version": "1.4.5", "settings": {}}
    node.write_text(json.dumps(data))
    script = text_of("shell", fabric_builder.image(tmp_path / "image"), node, capsys)
    # Apptainer would pass over the older name once its own is set
    once = exported(script, {"SINGULARITY_BIND": "/mine"})["APPTAINER_BIND"]
    assert once.startswith("/mine,/opt/cray/")
    assert exported(script + script, {"SINGULARITY_BIND": "/mine"})["APPTAINER_BIND"] == once


@pytest.mark.threat
def test_nothing_that_an_image_says_is_evaluated(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    for value in ("/a\nexec touch x", "/a$(touch x)", "/a`touch x`", "/a\x1b[31m", '/a"', "/a\\"):
        (image / ".singularity.d/env/90-environment.sh").write_text(f"export LD_LIBRARY_PATH='/opt/rocm/lib:{value}'\n")
        for style in ("shell", "singularity"):
            assert main(["bind", str(image), "--host", str(node), "--format", style]) == 1, value
            out, err = capsys.readouterr()
            assert out == "", value
            assert "holds a character that engines or shells evaluate" in unwrapped(err), value
            assert "\x1b" not in err


def test_a_refusal_stops_whoever_does_not_look_at_the_exit_code(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image", glibc=35)
    words = {"shell": "false", "singularity": "--lumiimg-bind-refused"}
    for style, stop in words.items():
        assert main(["bind", str(image), "--host", str(node), "--format", style]) == 1
        assert stop in capsys.readouterr().out


def test_names_of_versions_are_text(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    own = versioned(image / "usr/lib64/libjson-c.so.5", defines=("JSONC_0.14", "JSONC_1.xx"))
    own.write_bytes(own.read_bytes().replace(b"JSONC_1.xx", "JSONC_2.²".encode()))
    image_with_escape = fabric_builder.image(tmp_path / "other", fabric="FABRIC_9.xxx")
    plugin = image_with_escape / "usr/lib64/librccl-net.so"
    plugin.write_bytes(plugin.read_bytes().replace(b"FABRIC_9.xxx", b"FABRIC_\x1b[31m"))
    assert verdicts(image, node, capsys) == (0, 0, 0)
    for command in ("bind", "explain"):
        assert main([command, str(image_with_escape), "--host", str(node)]) == 1
        assert "\x1b" not in "".join(capsys.readouterr())


@pytest.mark.threat
def test_a_host_whose_libraries_go_on_for_ever_is_refused(tmp_path: Path, node: Path, capsys: Capture) -> None:
    data = json.loads(node.read_text())
    pattern = next(entry for entry in data["libraries"] if entry["path"].endswith("libnl-3.so.200"))
    entry = next(entry for entry in data["entries"] if entry["role"] == "libfabric")
    for number in range(80):
        facts = pattern["facts"] | {"soname": f"libx{number}.so", "needed": [f"libx{number + 1}.so"]}
        path = f"/usr/lib64/libx{number}.so"
        data["libraries"].append(pattern | {"path": path, "facts": facts})
        entry["closure"][f"libx{number}.so"] = path
    fabric = next(entry for entry in data["libraries"] if "libfabric" in entry["path"])
    fabric["facts"]["needed"].append("libx0.so")
    node.write_text(json.dumps(data))
    code, found = bind(fabric_builder.image(tmp_path / "image"), node, capsys)
    assert (code, found["refusals"][-1]["need"]) == (1, "a closure that ends")


# -- explain, check --


def explain(image: Path, capsys: Capture, *argv: str | Path) -> tuple[int, dict[str, Any], str]:
    code = main(["explain", str(image), *map(str, argv), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_explain_shows_sides_versions_and_margins(tmp_path: Path, node: Path, capsys: Capture) -> None:
    code, data, text = explain(fabric_builder.image(tmp_path / "image"), capsys, "--host", node)
    assert (code, data["decision"], data["fabric"]) == (0, "ok", "host")
    assert data["host"]
    assert data["glibc"] == {"image": "2.41", "host": "2.38"}
    gate = next(rule for rule in data["rules"] if rule["id"] == "glibc-gate")
    assert (gate["outcome"], gate["need"], gate["have"]) == (
        "ok",
        "GLIBC_2.38 of libc.so.6 (image)",
        "up to GLIBC_2.41",
    )
    told = "libfabric.so.1 (host) needs GLIBC_2.38 of libc.so.6 (image): it has up to GLIBC_2.41; 3 versions left"
    assert told in unwrapped(text)
    assert "HOST           └── libcxi.so.1 /usr/lib64/libcxi.so.1" in text


def test_the_process_is_that_of_torch_where_there_is_one(tmp_path: Path, node: Path, capsys: Capture) -> None:
    """A wheel brings its own RCCL; whether that one or /opt/rocm's is loaded, the loader decides."""
    image = fabric_builder.image(tmp_path / "image")
    python(image, "usr")
    venv(image, "opt/venv", "/usr")
    environment(image, PATH="/opt/venv/bin:/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    packages = image / "opt/venv/lib/python3.12/site-packages"
    rccl = library(packages / "torch/lib/librccl.so.1", image / "lib64/libc.so.6", source=fabric_builder.RCCL)
    library(packages / "torch/lib/libtorch_hip.so", rccl, *rpath("$ORIGIN"))
    (packages / "torch-2.7.1+rocm6.2.4.dist-info").mkdir()
    code, data, _ = explain(image, capsys, "--host", node)
    assert (code, data["torch"]) == (0, "2.7.1+rocm6.2.4")
    found = {item["name"]: item["path"] for item in data["loaded"]}
    assert found["librccl.so.1"] == "/opt/venv/lib/python3.12/site-packages/torch/lib/librccl.so.1"
    assert found["libcxi.so.1"] == f"{PRIVATE}/libcxi.so.1"


def test_explain_without_a_host_cannot_tell_and_says_what_would(tmp_path: Path, capsys: Capture) -> None:
    code, data, text = explain(fabric_builder.image(tmp_path / "image"), capsys)
    assert (code, data["decision"], data["missing"]) == (3, "unknown", ["libfabric.so.1"])
    assert "lumiimg host scan" in unwrapped(text)


def test_without_a_host_the_first_thing_that_the_image_lacks_is_named(tmp_path: Path, capsys: Capture) -> None:
    code, data, _ = explain(fabric_builder.image(tmp_path / "image", plugin=False), capsys)
    assert (code, data["decision"], data["missing"]) == (1, "refused", ["librccl-net.so"])


def test_a_snapshot_without_a_fabric_decides_nothing(tmp_path: Path, capsys: Capture) -> None:
    login = fabric_builder.host(tmp_path / "login")
    (login / "usr/lib64/libcxi.so.1").unlink()
    assert verdicts(fabric_builder.image(tmp_path / "theirs"), snapshot(login), capsys) == (3, 3, 3)
    fabric_builder.c_library(tmp_path / "laptop", 39)
    node = snapshot(tmp_path / "laptop")
    image = fabric_builder.image(tmp_path / "image")
    assert main(["bind", str(image), "--host", str(node)]) == 3
    _, err = capsys.readouterr()
    assert "CANNOT TELL" in unwrapped(err)
    assert "on a compute node" in unwrapped(err)
    code, data, _ = explain(image, capsys, "--host", node)
    assert (code, data["decision"]) == (3, "unknown")


def test_check_takes_the_host_into_account(tmp_path: Path, node: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    assert main(["check", str(image), "--level", "static"]) == 3
    capsys.readouterr()
    assert main(["check", str(image), "--level", "static", "--host", str(node), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["path"]["libfabric"] == f"{PRIVATE}/libfabric.so.1"
    assert "bind.loads" in {finding["id"] for finding in data["findings"]}
    old = fabric_builder.image(tmp_path / "old", glibc=35)
    assert main(["check", str(old), "--level", "static", "--host", str(node), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    refused = next(finding for finding in data["findings"] if finding["id"] == "bind.refused")
    assert "GLIBC_2.38" in refused["summary"]


def test_a_bind_of_the_user_over_what_is_searched_leaves_the_files_answer_open(
    tmp_path: Path, node: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = fabric_builder.image(tmp_path / "image")
    monkeypatch.setenv("SINGULARITY_BIND", f"/scratch,/var/spool/slurmd,/usr/lib64/libcxi.so.1:{PRIVATE}/libcxi.so.1")
    assert verdicts(image, node, capsys)[2] == 0
    monkeypatch.setenv("SINGULARITY_BIND", "/scratch,/opt/other:/opt/rocm")
    assert main(["check", str(image), "--level", "static", "--host", str(node), "--json"]) == 3
    found = {finding["id"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert found["image.binds"]["evidence"] == ["/opt/other:/opt/rocm"]
