# JAX and the plugin for ROCm load; a GPU is not needed for that, and the CPU computes.
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
JAX_PLATFORMS=cpu "$python" -c 'import jax; assert jax.numpy.arange(4).sum() == 6; print("jax", jax.__version__)'
# JAX opens the plugin when it is asked for a GPU, and is quiet about one that does not load: the loader says it here.
files='import sys; from importlib.metadata import files
for each in sys.argv[1:]:
    print(*(file.locate() for file in files(each) or () if file.name.endswith(".so")), sep="\n")'
mapfile -t libraries < <("$python" -c "$files" "jax-$PLUGIN-plugin" "jax-$PLUGIN-pjrt")
[ -n "${libraries[*]}" ] || { echo "jax-$PLUGIN-plugin and jax-$PLUGIN-pjrt have no libraries"; exit 1; }
if LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/opt/rocm/lib" ldd "${libraries[@]}" 2>&1 | grep 'not found'; then
    echo "JAX would compute on the CPU: its plugin for ROCm lacks these libraries"
    exit 1
fi
for name in "jax-$PLUGIN-plugin" "jax-$PLUGIN-pjrt"; do
    "$python" -c 'import sys; from importlib.metadata import version; print(sys.argv[1], version(sys.argv[1]))' "$name"
done
