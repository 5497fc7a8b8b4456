# Install vLLM's own wheels for this ROCm, with the torch that they bring, or compile it for the GPU of the site.
layer=vllm
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"
# shellcheck source=layers/lib/python.sh
. "$LAYER_FILES/python.sh"
# shellcheck source=layers/lib/gpu.sh
. "$LAYER_FILES/gpu.sh"

# The torch of vLLM's wheels is built where Open MPI 4 is, and does not load without it (vllm#45315). Ubuntu's package of it
# would bring Ubuntu's libfabric, UCX and ROCm 5.7 along. So of that package the libraries alone are taken, into a folder of
# their own: nothing here starts MPI, and what they open for that is not there.
add_open_mpi() {
    local folder=/opt/lumiimg/open-mpi package
    keep_packages libhwloc15
    package=$(first_known libopenmpi3t64 libopenmpi3) || fail "torch needs Open MPI 4, which this distribution does not have"
    apt_get download "$package"
    dpkg-deb -x "$package"_*.deb open-mpi
    mkdir -p "$folder"
    find open-mpi/usr/lib -regex '.*/\(libmpi\|libmpi_cxx\|libopen-pal\|libopen-rte\)\.so\..*' -exec cp -a -t "$folder" {} +
    keep_packages "$(first_known libevent-core-2.1-7t64 libevent-core-2.1-7)" \
        "$(first_known libevent-pthreads-2.1-7t64 libevent-pthreads-2.1-7)"
    search_in "$folder"
}

first_known() {
    local name
    for name; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    return 1
}

# What the libraries of torch need of the distribution, and the image lacks, by the names that the loader asks for.
add_libraries_of_torch() {
    local folder missing name packages=()
    folder=$("$python" -c 'from importlib.util import find_spec; print(*find_spec("torch").submodule_search_locations)')/lib
    missing=$({ find "$folder" -name '*.so*' -type f -exec env LD_LIBRARY_PATH="$folder" ldd {} + 2>/dev/null || true; } |
        sed -n 's/^\s*\(\S*\) => not found$/\1/p' | LC_ALL=C sort -u)
    for name in $missing; do
        case $name in
        libmpi.so.40) add_open_mpi ;;
        libatomic.so.1) packages+=(libatomic1) ;;
        libgfortran.so.5) packages+=(libgfortran5) ;;
        libnuma.so.1) packages+=(libnuma1) ;;
        libprotobuf.so.32) packages+=(libprotobuf32t64) ;;
        libsleef.so.3) packages+=(libsleef3) ;;
        esac
    done
    keep_packages "${packages[@]}"
}

if has_wheel torch; then
    use_venv
else
    use_torch
fi
keep_compiler
install_wheels
if has_wheel torch; then
    add_libraries_of_torch
    write_constraints
elif ! has_wheel vllm; then
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
