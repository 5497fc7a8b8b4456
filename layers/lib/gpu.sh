# shellcheck shell=bash
# Building for a GPU that this machine does not have. The caller has ARCH from its arguments: `gfx90a`, or several with
# `;`.

# What compilers and build systems ask when nobody tells them the GPU. Source: lumi-containers helper-files, and
# laifs-container-recipes Rocm_Multipurpose: without it CMake ends with "amdgpu-arch tool failed".
stand_ins=()

use_arch() {
    local rocm=/opt/rocm tool architectures
    [ -d "$rocm" ] || fail "this layer is compiled with ROCm's compilers: the base needs /opt/rocm"
    architectures=${ARCH//;/ }
    export ROCM_PATH=$rocm
    # One for each project that builds for GPUs; they agree in nothing but the values.
    export PYTORCH_ROCM_ARCH=$ARCH AMDGPU_TARGETS=$ARCH GPU_TARGETS=$ARCH GPU_ARCHS=$ARCH
    export HIP_ARCHITECTURES=$architectures CMAKE_HIP_ARCHITECTURES=$ARCH
    MAX_JOBS=$(count_jobs)
    export MAX_JOBS
    PATH=$rocm/bin:$rocm/llvm/bin:$PATH
    trap restore_tools EXIT
    for tool in amdgpu-arch offload-arch; do
        stand_in "$(readlink -f "$rocm/llvm/bin")/$tool" "$architectures"
    done
    stand_in "$rocm/bin/rocm_agent_enumerator" "gfx000 $architectures"
}

# Put a program in place of TOOL that prints the words, one a line. The tool itself is put back when the script ends, so
# the image keeps the one that tells the truth on a node.
stand_in() {
    local tool=$1 words=$2
    [ -e "$tool" ] || [ -L "$tool" ] || return 0
    [ ! -e "$tool.lumiimg" ] || fail "$tool.lumiimg is there already"
    mv "$tool" "$tool.lumiimg"
    stand_ins+=("$tool")
    # shellcheck disable=SC2016 # the second line is the program's own
    printf '#!/bin/sh\nprintf "%%s\\n" %s\n' "$words" >"$tool"
    chmod 755 "$tool"
}

restore_tools() {
    local tool
    for tool in "${stand_ins[@]}"; do
        mv -f "$tool.lumiimg" "$tool"
    done
    stand_ins=()
}

# Compilers at once: as many as processors, but 4 GiB for each, which is the project's own choice: kernels of composable
# kernel take more than most, and a build that is killed for memory says nothing of it.
count_jobs() {
    local processors gigabytes
    processors=$(getconf _NPROCESSORS_ONLN)
    gigabytes=$(($(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1024 / 1024))
    processors=$((gigabytes / 4 < processors ? gigabytes / 4 : processors))
    echo $((processors > 0 ? processors : 1))
}
