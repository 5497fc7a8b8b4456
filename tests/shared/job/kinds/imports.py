"""Which torch `import torch` takes: order of `.pth` files, site folders, which Python it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.shared.job.changes import NotHereError
from tests.shared.job.kinds.place import (
    Planted,
    copy_folder,
    home_of,
    packages_of,
    prefix_of,
    put,
    second_torch,
    stdlib_of,
    torch_of,
)
from tests.shared.job.world import BY_TORCH

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.shared.job.world import World

_EASY_FIRST = "import sys; sys.__plen = len(sys.path)\n"
_EASY_LAST = (
    "import sys; new=sys.path[sys.__plen:]; del sys.path[sys.__plen:]; p=getattr(sys,'__egginsert',0); "
    "sys.path[p:p]=new; sys.__egginsert = p+len(new)\n"
)


def _moved(world: World, folder: str) -> None:
    """Move the good torch to another folder of packages."""
    torch = torch_of(world)
    if world.at(torch).is_symlink():
        raise NotHereError
    world.move(torch, f"{folder}/torch")
    world.package = f"{folder}/torch"


# -- B: the order of .pth files --


def pth_order(world: World, draw: random.Random) -> Planted:
    """Of two torches each is named by a `.pth` file, or by a line of one."""
    packages = packages_of(world)
    bad = second_torch(world)
    stays = draw.random() < 0.3
    good = "/opt/first/packages"
    if stays:
        good = packages
    else:
        _moved(world, good)
    up = "../" * packages.count("/")
    form = draw.choice([*_PTH_FORMS])
    lines = {"good": good, "bad": bad}
    order = draw.choice([("good", "bad"), ("bad", "good")])
    relative = draw.random() < 0.4
    spelled = {key: (up + value.lstrip("/")) if relative else value for key, value in lines.items()}
    _PTH_FORMS[form](world, packages, [spelled[key] for key in order], draw)
    # whether a line of code fails is for code to say; what setuptools wrote before 2015, and other bytes, are not followed
    file = {"a line that fails": "a.pth", "not UTF-8": "a.pth", "easy-install": "easy-install.pth"}.get(form)
    return Planted(
        f"{form}, {order[0]} first{', good in site' if stays else ''}{', relative' if relative else ''}",
        f"{packages}/{file}" if file else None,
    )


def _two_files(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    first, last = draw.choice([("a.pth", "b.pth"), ("A.pth", "a.pth"), ("10.pth", "9.pth"), ("_a.pth", "a.pth"), ("Z.pth", "a.pth"), ("a-b.pth", "a.pth"), ("é.pth", "ü.pth")])  # fmt: skip
    for name, folder in zip((first, last), folders, strict=True):
        put(world, f"{packages}/{name}", f"{folder}\n")


def _two_files_written_the_other_way(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    for name, folder in zip(("b.pth", "a.pth"), folders, strict=True):
        put(world, f"{packages}/{name}", f"{folder}\n")


def _two_lines(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    end, blank = (
        draw.choice(["\n", "\r\n", " \n", "\t\n"]),
        draw.choice(["", "\n", "# comment\n", "/opt/nothing\n", "   \n"]),
    )
    put(world, f"{packages}/both.pth", f"{folders[0]}{end}{blank}{folders[1]}{end}")


def _with_comment(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    mark = draw.choice(["#", "# ", "##"])
    put(world, f"{packages}/both.pth", f"{mark}{folders[0]}\n{folders[1]}\n")


def _leading_blank(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    put(world, f"{packages}/both.pth", f"{draw.choice([' ', chr(9)])}{folders[0]}\n{folders[1]}\n")


def _with_bom(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    put(world, f"{packages}/both.pth", "\ufeff" + f"{folders[0]}\n{folders[1]}\n")


def _not_utf8(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    put(world, f"{packages}/a.pth", f"{folders[0]}\n".encode() + b"# \xff\xfe\n")
    put(world, f"{packages}/b.pth", f"{folders[1]}\n")


def _a_line_that_fails(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    """The rest of its file is left out (site.addpackage)."""
    line = draw.choice(["import not_here_at_all", "import os; 1/0", "import os; raise ValueError"])
    put(world, f"{packages}/a.pth", f"{line}\n{folders[0]}\n")
    put(world, f"{packages}/b.pth", f"{folders[1]}\n")


def _a_file_of_a_named_folder(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    """A `.pth` in a folder that a `.pth` names is not read."""
    put(world, "/opt/middle/more.pth", f"{folders[0]}\n")
    put(world, f"{packages}/a.pth", "/opt/middle\n")
    put(world, f"{packages}/b.pth", f"{folders[1]}\n")


def _hidden(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    put(world, f"{packages}/.a.pth", f"{folders[0]}\n")
    put(world, f"{packages}/b.pth", f"{folders[1]}\n")


def _easy_install(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    put(world, f"{packages}/easy-install.pth", f"{_EASY_FIRST}{folders[0]}\n{_EASY_LAST}")
    put(world, f"{packages}/{draw.choice(['a.pth', 'z.pth'])}", f"{folders[1]}\n")


def _twice(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    put(world, f"{packages}/both.pth", f"{folders[0]}\n{folders[1]}\n{folders[0]}/\n")
    put(world, f"{packages}/a.pth", f"{folders[1]}\n" if draw.random() < 0.5 else "/opt/nothing\n")


def _by_a_link(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    target = f"{packages}/{folders[0]}" if folders[0].startswith("../") else folders[0]
    world.link("/opt/link", target)
    put(world, f"{packages}/both.pth", f"/opt/link\n{folders[1]}\n")


def _file_is_a_link(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    put(world, "/opt/real.txt", f"{folders[0]}\n")
    world.link(f"{packages}/a.pth", "/opt/real.txt")
    put(world, f"{packages}/b.pth", f"{folders[1]}\n")


def _named_as_a_folder(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    put(world, f"{packages}/a.pth/x", "")
    put(world, f"{packages}/b.pth", f"{folders[0]}\n{folders[1]}\n")


def _through_a_folder_that_is_not_there(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    """os.path.abspath takes `gone/..` away before anybody looks."""
    put(
        world,
        f"{packages}/a.pth",
        f"gone/../{folders[0]}\n" if folders[0].startswith("..") else f"/gone/..{folders[0]}\n",
    )
    put(world, f"{packages}/b.pth", f"{folders[1]}\n")


def _one_line_file_without_end(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    put(world, f"{packages}/a.pth", folders[0])
    put(world, f"{packages}/b.pth", folders[1])


def _a_line_with_code_between(world: World, packages: str, folders: list[str], draw: random.Random) -> None:
    line = draw.choice(["import sys", "import os, sys; os.environ.get('NOTHING')", "import\tsys"])
    put(world, f"{packages}/both.pth", f"{line}\n{folders[0]}\n{line}\n{folders[1]}\n")


_PTH_FORMS: dict[str, Callable[[World, str, list[str], random.Random], None]] = {
    "two files": _two_files,
    "two files written the other way": _two_files_written_the_other_way,
    "two lines": _two_lines,
    "with a comment": _with_comment,
    "blank in front": _leading_blank,
    "with a byte order mark": _with_bom,
    "not UTF-8": _not_utf8,
    "a line that fails": _a_line_that_fails,
    "a file of a named folder": _a_file_of_a_named_folder,
    "hidden": _hidden,
    "easy-install": _easy_install,
    "twice": _twice,
    "by a link": _by_a_link,
    "file is a link": _file_is_a_link,
    "named as a folder": _named_as_a_folder,
    "through a folder that is not there": _through_a_folder_that_is_not_there,
    "without an end": _one_line_file_without_end,
    "a line with code between": _a_line_with_code_between,
}


# -- C: site folders --


def site_folders(world: World, draw: random.Random) -> Planted:
    """Another torch, or the only one, lies in a folder that may be one of this Python's."""
    version = world.system.version
    prefix, home = prefix_of(world), home_of(world)
    name = draw.choice([
        f"{home}/local/lib/python{version}/dist-packages", f"{home}/lib/python3/dist-packages",
        f"{home}/lib/python{version}/dist-packages", f"{home}/lib64/python{version}/site-packages",
        f"{home}/local/lib/python{version}/site-packages", f"{home}/lib/python3/site-packages",
        f"{home}/local/lib64/python{version}/site-packages", f"{home}/lib/python{version}/site-packages",
        f"/usr/local/lib/python{version}/site-packages", f"{home}/lib/site-python", f"{home}/lib/python/site-packages",
        f"{prefix}/lib64/python{version}/site-packages", f"{prefix}/lib/python{version}/site-packages",
        f"{prefix}/local/lib/python{version}/dist-packages", f"/opt/userbase/lib/python{version}/site-packages",
        f"{home}/lib/python{version}", f"{home}/lib/python{version}/lib-dynload", f"{home}/lib/python{version.replace('.', '')}.zip",
        f"{home}/bin", f"{prefix}/lib/python3.{int(version[2:]) + 1}/site-packages",
    ])  # fmt: skip
    only = draw.random() < 0.4
    torch = torch_of(world)
    if name == torch.rpartition("/")[0] or world.at(torch).is_symlink():
        raise NotHereError
    if only:
        _moved(world, name)
    else:
        folder = second_torch(world)
        world.at(name).mkdir(parents=True, exist_ok=True)
        world.move(f"{folder}/torch", f"{name}/torch")
    if name.startswith("/opt/userbase") or draw.random() < 0.1:
        world.set(PYTHONUSERBASE="/opt/userbase")
    if draw.random() < 0.25:
        world.set(PYTHONNOUSERSITE=draw.choice(["1", "", "0"]))
    if draw.random() < 0.1:
        world.set(PYTHONPLATLIBDIR=draw.choice(["lib", "lib64"]))
    extra = ", ".join(f"{key}={value}" for key, value in world.variables.items() if key.startswith("PYTHON"))
    shown = name.replace(version, "X").replace(version.replace(".", ""), "X")
    return Planted(f"{'only' if only else 'other'} in {shown}{'; ' + extra if extra else ''}")


def virtual_environments(world: World, draw: random.Random) -> Planted:
    """A virtual environment is put in front, and its configuration is written as people write it."""
    if home_of(world) != prefix_of(world):
        raise NotHereError
    torch = torch_of(world)
    world.jobs = (BY_TORCH,)
    home, version = home_of(world), world.system.version
    place = draw.choice(["/opt/env", "/usr/local/env"])
    form = draw.choice(["true", "True", "TRUE", " true ", "yes", "1", "false", "False", "", "none"])
    key = draw.choice(["include-system-site-packages", "Include-System-Site-Packages", "include_system_site_packages"])
    equals = draw.choice([" = ", "=", " ="])
    where = draw.choice(["beside", "beside", "beside", "in bin", "gone"])
    text = (
        f"home{equals}{home}/bin\n"
        + (f"{key}{equals}{form}\n" if form != "none" else "")
        + f"version{equals}{version}.1\n"
    )
    if draw.random() < 0.2:
        text = f"# made by hand\n{text.upper() if draw.random() < 0.2 else text}"
    if draw.random() < 0.15:
        text = text.replace(f"{home}/bin", draw.choice(["/opt/gone/bin", home, f"{home}/bin/", f"{home}/bin/python3"]))
    if draw.random() < 0.5:
        world.link(f"{place}/bin/python", f"{home}/bin/python{version}")
    else:
        world.link(f"{place}/bin/python3", f"{home}/bin/python3")
        world.link(f"{place}/bin/python", "python3")
    copied = draw.random() < 0.2
    if copied:
        world.take(f"{place}/bin/python", world.at(f"{home}/bin/python{version}"))
    if where != "gone":
        put(world, f"{place}/pyvenv.cfg" if where == "beside" else f"{place}/bin/pyvenv.cfg", text)
    folder = f"{place}/lib/python{version}/site-packages"
    world.at(folder).mkdir(parents=True)
    has = draw.choice(["nothing", "nothing", "good", "bad"])
    if has == "good":
        copy_folder(world, torch, f"{folder}/torch")
    if has == "bad":
        other = second_torch(world)
        world.move(f"{other}/torch", f"{folder}/torch")
    if draw.random() < 0.3:
        world.link(f"{place}/lib64", "lib")
    world.prepend("PATH", f"{place}/bin")
    return Planted(
        f"cfg {where}, {key if key[0] == 'I' or '_' in key else 'include'}={form}, has {has}{', a copy' if copied else ''}",
        f"{place}/bin/pyvenv.cfg" if where == "in bin" else None,
    )


def python_variables(world: World, draw: random.Random) -> Planted:
    torch = torch_of(world)
    bad = second_torch(world)
    good = torch.rpartition("/")[0]
    home = home_of(world)
    name, value = draw.choice([
        ("PYTHONPATH", bad), ("PYTHONPATH", f"{good}:{bad}"), ("PYTHONPATH", f":{bad}"), ("PYTHONPATH", f"/opt/nothing:{bad}/"),
        ("PYTHONPATH", f"{bad}/torch"), ("PYTHONPATH", ""), ("PYTHONPATH", f"{bad}:{good}"),        ("PYTHONPATH", f"{bad}/../{bad.rpartition('/')[2]}"), ("PYTHONPATH", f"/opt/gone/..{bad}"), ("PYTHONPATH", f" {bad}"),
        ("PYTHONPATH", f"{bad};{good}"), ("PYTHONHOME", home), ("PYTHONHOME", f"{home}:{home}"), ("PYTHONHOME", "/opt/gone"),
        ("PYTHONHOME", ""), ("PYTHONHOME", f"{home}/"), ("PYTHONUSERBASE", "/opt/second"), ("PYTHONUSERBASE", "/opt/nothing"),
        ("PYTHONSAFEPATH", "1"), ("PYTHONDONTWRITEBYTECODE", "1"), ("PYTHONNOUSERSITE", "1"), ("PYTHONPLATLIBDIR", "lib64"),
        ("PYTHONPLATLIBDIR", "lib"), ("PYTHONSTARTUP", f"{bad}/torch/__init__.py"), ("PYTHONOPTIMIZE", "2"), ("PYTHONEXECUTABLE", "/opt/second/bin/python"),
        ("PYTHONINSPECT", ""), ("PYTHONWARNINGS", "error"), ("PYTHONUTF8", "1"), ("PYTHONPYCACHEPREFIX", "/tmp/cache"), ("PYTHONCASEOK", "1"),
    ])  # fmt: skip
    world.set(**{name: value})
    return Planted(f"{name}={value.replace(bad, 'BAD').replace(good, 'GOOD').replace(home, 'HOME')}")


# -- D: which Python it is --


def which_python(world: World, draw: random.Random) -> Planted:
    """Its file has another name, and other standard libraries lie about."""
    torch = torch_of(world)
    home, prefix, version = home_of(world), prefix_of(world), world.system.version
    if world.at(f"{stdlib_of(world)}/sitecustomize.py").exists():
        raise NotHereError
    form = draw.choice(
        ["named python", "named python3", "named python", "as it was", "a wrong number", "in a folder of its own"]
    )
    if prefix != home:
        form = "as it was"
    real = f"{home}/bin/python{version}"
    if form in {"named python", "named python3"}:
        target = f"{home}/bin/{form.removeprefix('named ')}"
        world.remove(*(path for path in (f"{home}/bin/python", f"{home}/bin/python3") if path == target))
        world.move(real, target)
        if target.endswith("python3"):
            world.link(f"{home}/bin/python", "python3")
    if form == "a wrong number":
        other = f"{home}/bin/python3.{int(version[2:]) + draw.choice([-1, 1])}"
        world.move(real, other)
        world.link(f"{home}/bin/python", other.rpartition("/")[2])
    if form == "in a folder of its own":
        world.move(real, f"{home}/libexec/python/interpreter")
        world.link(f"{home}/bin/python", f"{home}/libexec/python/interpreter")
    strays = draw.sample(
        ["3.6", "3.9", "3.10", "3.12", "3.13", "3.13t", "3.14", "3.14t", f"{version}t", "2.7"], draw.choice([1, 2])
    )
    bare = draw.random() < 0.3
    for number, stray in enumerate(strays):
        folder = f"{home}/lib/python{stray}"
        for name in ("os.py", "site.py", "encodings/__init__.py"):
            if not bare:
                put(world, f"{folder}/{name}", "")
        world.at(f"{folder}/site-packages").mkdir(parents=True)
        if number == 0:
            other = second_torch(world)
            world.move(f"{other}/torch", f"{folder}/site-packages/torch")
    if draw.random() < 0.3 and not world.at(f"{home}/bin/python{strays[0]}").exists():
        put(world, f"{home}/bin/python{strays[0]}", "#!/bin/sh\n")
        world.at(f"{home}/bin/python{strays[0]}").chmod(0o755)
    del torch
    return Planted(f"{form}; beside {', '.join(sorted(strays))}{' (empty)' if bare else ''}")


def ways_to_python(world: World, draw: random.Random) -> Planted:
    """What `python` on PATH is: links into environments, chains, folders that are in the way, scripts."""
    torch_of(world)
    prefix, home, version = prefix_of(world), home_of(world), world.system.version
    real = f"{home}/bin/python{version}"
    form = draw.choice([*_ROADS])
    front = "/opt/front/bin"
    _ROADS[form](world, front, prefix, real)
    world.prepend("PATH", front)
    question = "python._pth" if form == "a ._pth" else None
    return Planted(f"{form}{' (of an environment)' if prefix != home else ''}", question)


def _link_to_the_environment(world: World, front: str, prefix: str, real: str) -> None:
    world.link(f"{front}/python", f"{prefix}/bin/python")


def _folder_is_a_link(world: World, front: str, prefix: str, real: str) -> None:
    world.link(front, f"{prefix}/bin")


def _link_to_the_file(world: World, front: str, prefix: str, real: str) -> None:
    world.link(f"{front}/python", real)


def _chain(world: World, front: str, prefix: str, real: str) -> None:
    world.link(f"{front}/python", "python3")
    world.link(f"{front}/python3", "../lib/current")
    world.link("/opt/front/lib/current", real)


def _a_folder(world: World, front: str, prefix: str, real: str) -> None:
    world.at(f"{front}/python").mkdir(parents=True)


def _may_not_run(world: World, front: str, prefix: str, real: str) -> None:
    world.put(f"{front}/python", "not a program", 0o644)


def _points_nowhere(world: World, front: str, prefix: str, real: str) -> None:
    world.link(f"{front}/python", "/opt/gone/python")


def _environment_of_an_environment(world: World, front: str, prefix: str, real: str) -> None:
    world.link(f"{front}/python", f"{prefix}/bin/python")
    put(world, "/opt/front/pyvenv.cfg", f"home = {prefix}/bin\ninclude-system-site-packages = true\n")


def _without_home(world: World, front: str, prefix: str, real: str) -> None:
    world.link(f"{front}/python", real)
    put(world, "/opt/front/pyvenv.cfg", "include-system-site-packages = true\n")


def _copy_without_environment(world: World, front: str, prefix: str, real: str) -> None:
    world.take(f"{front}/python", world.at(real))


def _copy_with_landmark(world: World, front: str, prefix: str, real: str) -> None:
    """A copied program, and an empty standard library beside it."""
    world.take(f"{front}/python", world.at(real))
    put(world, f"/opt/front/lib/python{world.system.version}/os.py", "")


def _with_pth_of_its_path(world: World, front: str, prefix: str, real: str) -> None:
    """`python._pth` beside the program says what its path is."""
    world.take(f"{front}/python", world.at(real))
    library = f"{real.rpartition('/bin/')[0]}/lib/python{world.system.version}"
    put(world, f"{front}/python._pth", f"{library}\n{library}/lib-dynload\n# import site\n")


_ROADS: dict[str, Callable[[World, str, str, str], None]] = {
    "a link to the environment's": _link_to_the_environment,
    "its folder is a link": _folder_is_a_link,
    "a link to the file": _link_to_the_file,
    "a chain of links": _chain,
    "a folder": _a_folder,
    "may not run": _may_not_run,
    "points nowhere": _points_nowhere,
    "an environment of an environment": _environment_of_an_environment,
    "without home": _without_home,
    "a copy": _copy_without_environment,
    "a copy with a landmark": _copy_with_landmark,
    "a ._pth": _with_pth_of_its_path,
}
