# Compile SGLang's kernels for the site's GPU, then SGLang, whose extra all_hip takes nothing of CUDA.
layer=sglang
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"
# shellcheck source=layers/lib/gpu.sh
. "$LAYER_FILES/gpu.sh"

use_torch
install_wheels
case $ARCH in
gfx942 | gfx950) ;;
*) fail "sgl-kernel has no kernels for $ARCH, only for gfx942 and gfx950" ;;
esac
need_compilers
need git=git
need_python_headers
use_arch
export AMDGPU_TARGET=$ARCH
unpack "$SOURCE_SGLANG" sglang
(cd sglang/sgl-kernel && "$python" setup_rocm.py bdist_wheel --dist-dir=../../kernels)
run_pip install --no-index --no-deps "$PWD"/kernels/*.whl
# What pip would read is the project for CUDA; the other one lies beside it.
mv sglang/python sglang-python
mv sglang-python/pyproject_other.toml sglang-python/pyproject.toml
export SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION
build_wheel sglang-python
restore_tools
finish_python sglang sgl-kernel
"$python" /opt/lumiimg/check_torch.py
