
# -- packages of the user's own, in a virtual environment over the image --
# The image is read-only, and pip would put them into ~/.local, from where every other image would take them too.

# what pip may do to this Python: nothing where the result goes elsewhere, or nowhere
changes=
if [ "$kind" = pip ]; then
    for word; do
        case $word in
            --target | --target=* | -t | --prefix | --prefix=* | --root | --root=* | --dry-run | --help | -h)
                changes=
                break
                ;;
            install | uninstall) changes=${changes:-$word} ;;
        esac
    done
fi

make_venv() {
    # without a pip of its own: the image's serves. What the image has counts as installed, and its torch stays.
    "${enter[@]}" "$python" -c '
import importlib.metadata, os, sys, sysconfig, venv
folder, image = sys.argv[1:]
venv.create(folder, system_site_packages=True, symlinks=True, with_pip=False)
if sys.prefix != sys.base_prefix:  # the Python of the image is a virtual environment itself
    own = os.path.join(folder, "lib", "python%d.%d" % sys.version_info[:2], "site-packages", "image.pth")
    with open(own, "w") as file:
        file.write(sysconfig.get_path("purelib") + "\n")
with open(os.path.join(folder, "constraints.txt"), "w") as file:
    for name in ("torch", "torchvision", "torchaudio"):
        try:
            file.write("%s==%s\n" % (name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            pass
with open(os.path.join(folder, "pyvenv.cfg"), "a") as file:
    file.write("lumiimg-image = %s\n" % image)
' "$venv" "$image" || fail "no virtual environment could be made in $venv (is the folder bound into the container?)" 1
    printf '%s: made the virtual environment %s over %s\n' "$name" "$venv" "$image" >&2
}

venv=${LUMIIMG_VENV-}
if [ -n "$changes" ] && [ -z "$venv" ]; then
    fail "the image is read-only. Name a folder for packages of your own with it, a new one:
    export LUMIIMG_VENV=FOLDER      (on LUMI under /projappl or /scratch, not in \$HOME)
    $name $*" 1
fi
if [ -n "$venv" ]; then
    case $venv in
        /*) ;;
        *) fail "LUMIIMG_VENV=$venv is not an absolute path" 125 ;;
    esac
    if [ ! -e "$venv/pyvenv.cfg" ] && [ "$changes" = install ]; then
        make_venv
    fi
    [ -e "$venv/pyvenv.cfg" ] || fail "there is no virtual environment in LUMIIMG_VENV=$venv; pip install makes one" 125
    grep -qxF "lumiimg-image = $image" "$venv/pyvenv.cfg" ||
        fail "LUMIIMG_VENV=$venv was not made for this image ($image); name another folder, or unset it" 125
    export @ENGINE@ENV_VIRTUAL_ENV=$venv
    prepend "$venv/bin"
    case $kind in
        python | pip) program=$venv/bin/python ;;
        script) set -- "$program" "$@" && program=$venv/bin/python ;;
    esac
elif [ "$kind" = pip ]; then
    program=$python
fi
if [ "$kind" = pip ]; then
    set -- -m pip "$@"
    # else a package that wants another torch would bring one from PyPI, for CUDA
    [ "$changes" != install ] || set -- "$@" --constraint "$venv/constraints.txt"
fi
