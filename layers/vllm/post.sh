# Install vLLM's own wheel for this ROCm, or compile it for the GPU of the site.
layer=vllm
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"
# shellcheck source=layers/lib/gpu.sh
. "$LAYER_FILES/gpu.sh"

use_torch
keep_compiler
install_wheels
if ! has_wheel vllm; then
    need_compilers
    need git=git
    need_python_headers
    use_arch
    # ROCm's own Python binding of amd-smi: vLLM finds its GPUs with it.
    [ ! -d "$ROCM_PATH/share/amd_smi" ] || { cp -r "$ROCM_PATH/share/amd_smi" amd_smi && build_wheel amd_smi; }
    unpack "$SOURCE_VLLM" vllm
    # vLLM 0.12 would clone all of triton for this folder, which no lock would hold.
    if [ -n "${SOURCE_TRITON:-}" ]; then
        unpack "$SOURCE_TRITON" triton
        export TRITON_KERNELS_SRC_DIR=$PWD/triton/python/triton_kernels/triton_kernels
    fi
    # An address of git, which no lock holds; vLLM loads weights without it, too.
    sed -i '/^fastsafetensors @ /d' vllm/requirements/rocm.txt
    # Its parts in Rust are optional. With a cargo in the image they would come from crates that no lock holds.
    export CARGO_NET_OFFLINE=true
    # Outside of git it cannot tell its own version.
    export SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION VLLM_TARGET_DEVICE=rocm
    build_wheel vllm
    unset CARGO_NET_OFFLINE SETUPTOOLS_SCM_PRETEND_VERSION TRITON_KERNELS_SRC_DIR
    restore_tools
fi
finish_python vllm
"$python" /opt/lumiimg/check_torch.py vllm
