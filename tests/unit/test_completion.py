"""What a TAB offers, requested as the shells' scripts do; tests/engine/test_shells.py tests the shells themselves."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.folders import layer_folders, unparsed_layers
from lumiimg.catalog.sites import site_names
from lumiimg.cli.commands import make_parser
from lumiimg.cli.completion import _any_file, _folders, _images, _nothing, completer_of
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from tests.shared.layer_builder import BASE, LAYER, MakeLayer

HEAVY = {"rich", "requests", "packaging", "urllib3", "lumiimg.catalog.catalogue"}


def offered(line: str, folder: Path) -> tuple[list[str], set[str]]:
    """Return the completions of a line, and the modules loaded for them."""
    answer, modules = folder / "1.answer", folder / "2.modules"
    program = (
        "import sys, os; import lumiimg.cli.main as m; leave = os._exit\n"
        f"os._exit = lambda code: (open({str(modules)!r}, 'w').write(' '.join(sys.modules)), leave(code))\n"
        "m.run()"
    )
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": "\n"}
    environment = (
        os.environ | asked | {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")
    return answer.read_text().split("\n"), set(modules.read_text().split())


@pytest.mark.usefixtures("clean_home")
def test_commands_are_offered_without_those_that_are_no_users_business(tmp_path: Path) -> None:
    names, modules = offered("lumiimg ", tmp_path)
    assert {"build", "check", "log", "completion"} <= set(names)
    assert not {"node", "--help"} & set(names)
    assert not modules & HEAVY


def test_names_of_the_catalogue_are_offered_the_users_own_too(clean_home: Path, tmp_path: Path) -> None:
    own = clean_home / ".config/lumiimg"
    for name, text in (("my-base", BASE), ("my-layer", LAYER)):
        (own / "layers" / name).mkdir(parents=True)
        (own / "layers" / name / "layer.toml").write_text(text)
    (own / "layers/odd").mkdir()
    os.mkfifo(own / "layers/odd/layer.toml")
    (own / "sites").mkdir()
    (own / "sites/mine.toml").touch()
    names, modules = offered("lumiimg build --base ", tmp_path)
    assert {"my-base", "debian-13", "rocm-6.2.4"} <= set(names)
    assert not {"my-layer", "vllm", "rocm"} & set(names)
    assert not modules & HEAVY
    assert offered("lumiimg build --base x --add my", tmp_path)[0] == ["my-layer"]
    assert offered("lumiimg check x --site m", tmp_path)[0] == ["mine"]


def test_layers_are_offered_where_a_command_takes_no_folders_of_them(clean_home: Path, tmp_path: Path) -> None:
    del clean_home
    words, _ = offered("lumiimg cache rm vl", tmp_path)
    assert [word.strip() for word in words] == ["vllm"]


def test_names_at_a_glance_are_those_of_the_catalogue(make_layer: MakeLayer, layers: Path, clean_home: Path) -> None:
    make_layer("mine", LAYER)
    make_layer("yours", BASE)
    make_layer("vllm", BASE)  # in front of the layer of that name
    base = BASE.partition("[[bootstrap]]")[0]
    member = 'agent = "docker", from = "x", summary = "s"'
    make_layer("family", f'{base}variant = [{{name = "inline-1", {member}}}, {{{member}, name = "inline-2"}}]\n')
    make_layer("other", f"{base}[[ variant ]]\n{member.replace(', ', chr(10))}\nname = 'spaced-3'\n")
    make_layer("neither", f"{base}variant = 3\n")
    catalogue = open_catalogue({"HOME": str(clean_home)}, [layers])
    seen = {name: one.kind for name, one in unparsed_layers(layer_folders({"HOME": str(clean_home)}, [layers])).items()}
    # images that are known only by their names are not listed under their names as bases
    by_name = {name for name in catalogue.base_names() if re.fullmatch(r"lumi-multitorch-u24r7.*-\d{8}-\d{6}", name)}
    assert len(by_name) == 4
    assert sorted({*seen} | by_name) == catalogue.layer_names()
    assert {"inline-1", "inline-2", "spaced-3", "neither"} <= seen.keys()
    assert {"inline-1", "inline-2", "spaced-3"} <= {*catalogue.base_names()}
    bases = {name for name, kind in seen.items() if kind == "base" and name != "neither"}
    assert sorted(bases | by_name) == catalogue.base_names()
    assert "lumi" in site_names({"HOME": str(clean_home)})


def test_files_are_offered_by_what_fits_and_all_where_nothing_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("a.sif", "a.txt", "it's b.sif", ".hidden.sif", "sub/c.sif", "sub/d"):
        (tmp_path / name).touch()
    assert list(_images("")) == ["a.sif", "it's b.sif", "sub/"]
    assert list(_images("sub/")) == ["sub/c.sif"]
    assert list(_images("sub/d")) == ["sub/d"]
    assert list(_images(".h")) == [".hidden.sif"]
    assert list(_any_file("a")) == ["a.sif", "a.txt"]
    assert list(_folders("")) == ["sub/"]
    assert list(_any_file("nowhere/")) == []


def test_every_value_is_completed_or_is_one_that_only_the_user_knows() -> None:
    free = set()
    pending = [make_parser()]
    while pending:
        for action in pending.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                pending += action.choices.values()
            elif action.nargs != 0 and action.choices is None and completer_of(action) is _nothing:
                free.add(action.option_strings[-1] if action.option_strings else str(action.metavar))
    assert free == {
        "--account", "--arg", "--cwd", "--env", "--exclude-newer", "--gpus", "--downloads", "--keep", "--leave-out", "--look",
        "--mirror", "--module", "--name", "--node-minutes", "--nodes", "--partition", "--program", "--replace", "--sbatch",
        "--source", "--target", "--time", "FOLDER", "PACKAGE", "PATH",
    }  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_for_the_name_by_which_it_was_called(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/lumiimg.pyz", "completion", shell])
    assert main(["completion", shell]) == ExitCode.GOOD
    script = capsys.readouterr().out
    assert "lumiimg" in script
    assert "lumiimg.pyz" in script
    monkeypatch.setattr(sys, "argv", ["/opt/lumiimg;reboot", "completion", shell])
    assert main(["completion", shell]) == ExitCode.GOOD
    assert "reboot" not in capsys.readouterr().out
