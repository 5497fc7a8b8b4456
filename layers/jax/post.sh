# Install JAX with its plugin and runtime for ROCm, all of one release.
layer=jax
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"

use_environment
install_wheels
JAX_PLATFORMS=cpu "$python" -c 'import jax; print("jax", jax.__version__, jax.devices())'
finish_python
