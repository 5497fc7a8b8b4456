# Install AITER with the sources that it compiles its kernels from on a node.
layer=aiter
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"
# shellcheck source=layers/lib/gpu.sh
. "$LAYER_FILES/gpu.sh"

use_torch
install_wheels
need_compilers
need_python_headers
use_arch
unpack "$SOURCE_AITER" aiter
unpack "$SOURCE_COMPOSABLE_KERNEL" aiter/3rdparty/composable_kernel
# Outside of git it cannot tell its own version; 0.1.0 is what its pyproject.toml falls back to.
export SETUPTOOLS_SCM_PRETEND_VERSION=0.1.0
CC=$ROCM_PATH/llvm/bin/clang CXX=$ROCM_PATH/llvm/bin/clang++ BUILD_TARGET=rocm build_wheel aiter
restore_tools
finish_python aiter
"$python" /opt/lumiimg/check_torch.py
