# JAX and the plugin for ROCm load; a GPU is not needed for that, and the CPU computes.
python=/opt/venv/bin/python
[ -x "$python" ] || python=python3
JAX_PLATFORMS=cpu "$python" -c 'import jax; assert jax.numpy.arange(4).sum() == 6; print("jax", jax.__version__)'
for name in "jax-$PLUGIN-plugin" "jax-$PLUGIN-pjrt"; do
    "$python" -c 'import sys; from importlib.metadata import version; print(sys.argv[1], version(sys.argv[1]))' "$name"
done
