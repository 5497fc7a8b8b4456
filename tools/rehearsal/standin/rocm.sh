#!/bin/sh
# Makes FOLDER a stand-in for /opt/rocm of a release: headers, empty libraries, and compilers that compile for the host.
# usage: rocm.sh FOLDER RELEASE
set -eu
root=$1 release=$2 major=${2%%.*}
mkdir -p "$root/bin" "$root/llvm/bin" "$root/lib" "$root/.info" "$root/include/hip" "$root/include/hsa" "$root/include/rccl"
printf '%s\n' "$release" >"$root/.info/version"

# hipcc asks the C++ compiler, whatever the ending of the file, and leaves out what only compilers for GPUs know.
cat >"$root/bin/hipcc" <<'EOF'
#!/bin/bash
# A stand-in for hipcc: it compiles for the host.
[ "${1:-}" != --version ] || { printf 'HIP version: %s.0-stand-in\n' "$(cat /opt/rocm/.info/version)"; exit 0; }
words=()
for word; do
    case $word in
    --offload-arch=* | --amdgpu-target=*) ;;
    *.cu | *.hip) words+=(-x c++ "$word" -x none) ;;
    *) words+=("$word") ;;
    esac
done
exec g++ -I/opt/rocm/include "${words[@]}"
EOF
for tool in amdgpu-arch offload-arch; do
    printf '#!/bin/sh\necho "no GPU here: a stand-in" >&2\nexit 1\n' >"$root/llvm/bin/$tool"
done
printf '#!/bin/sh\nexec gcc "$@"\n' >"$root/llvm/bin/clang"
printf '#!/bin/sh\nexec g++ "$@"\n' >"$root/llvm/bin/clang++"
printf '#!/bin/sh\necho gfx000\n' >"$root/bin/rocm_agent_enumerator"
for tool in rocm-smi rocminfo amd-smi; do
    printf '#!/bin/sh\necho "%s: a stand-in"\n' "$tool" >"$root/bin/$tool"
done
chmod 755 "$root"/bin/* "$root"/llvm/bin/*

printf '#pragma once\ntypedef int hipError_t;\n' >"$root/include/hip/hip_runtime_api.h"
printf '#pragma once\n#include <hip/hip_runtime_api.h>\n' >"$root/include/hip/hip_runtime.h"
printf '#pragma once\n' >"$root/include/hsa/hsa.h"
printf '#pragma once\n' >"$root/include/rccl/rccl.h"
shared() {
    echo 'int lumiimg_stand_in;' | gcc -shared -fPIC -nostdlib -x c -Wl,-soname,"$1" -o "$root/lib/$1" -
    ln -sf "$1" "$root/lib/${1%%.so*}.so"
}
case $major in
10) shared libamdhip64.so.7 ;;
*) shared "libamdhip64.so.$major" ;;
esac
shared librccl.so.1
shared libhsa-runtime64.so.1
# What the plugins of JAX for this ROCm load: dynamic sections of jax-rocm60-pjrt 0.5.0, jax-rocm7-pjrt 0.9.1, 0.9.2 and 0.12.0,
# jax-rocm10-pjrt 0.11.2.
of_7="MIOpen.so.1 amd_comgr.so.3 hipblas.so.3 hipblaslt.so.1 hipfft.so.0 hiprtc-builtins.so.7 hiprtc.so.7 hipsolver.so.1
    hipsparse.so.4 hipsparselt.so.0 rocblas.so.5 rocm-core.so.1 rocm_smi64.so.1 rocprofiler-register.so.0
    rocprofiler-sdk-attach.so.1 rocprofiler-sdk-rocpd.so.1 rocprofiler-sdk-roctx.so.1 rocprofiler-sdk.so.1 rocsolver.so.0
    rocsparse.so.1 roctracer64.so.4 roctx64.so.4"
case $release in
7.[0-9] | 7.[0-9].*) libraries=$of_7 ;;
7.* | 10.*) libraries="$of_7 amd_smi.so.26 amd_smi.so.27 rocm_sysdeps_drm.so.2 rocm_sysdeps_drm_amdgpu.so.1 rocm_sysdeps_numa.so.1" ;;
*) libraries="MIOpen.so.1 amd_comgr.so.2 hipblas.so.2 hipfft.so.0 hipsolver.so.0 hipsparse.so.1 hipsparselt.so.0 rocblas.so.4
    rocm_smi64.so.7 rocprofiler-register.so.0 rocsolver.so.0" ;;
esac
for library in $libraries; do shared "lib$library"; done
