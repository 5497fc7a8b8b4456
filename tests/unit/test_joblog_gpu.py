"""What ends a job at its GPU is distinguished by the words of ROCm, CUDA and PyTorch, and by the sizes that they print."""

from __future__ import annotations

import pytest

from lumiimg.joblog import LogReport, read_lines
from tests.shared.job_deaths import EXITED

CLR = ":0:rocdevice.cpp            :2984: 41227351357d us: [pid:4711 tid:0x15] "
PYTORCH = "torch.OutOfMemoryError: {} out of memory. Tried to allocate {}. GPU 3 has a total capacity of {} of which {} is free."
OLD = "RuntimeError: CUDA out of memory. Tried to allocate {} (GPU 0; {} total capacity; {} already allocated; {} free; {} reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb"
OWN = " Including non-PyTorch memory, this process has {} memory in use. Of the allocated memory 7.96 GiB is allocated by PyTorch, and 7.73 MiB is reserved by PyTorch but unallocated."
AMDGPU = "ERROR:root:Driver not initialized (amdgpu not found in modules)"
ROCM = " Of the allocated memory {} is allocated by PyTorch, and {} is reserved by PyTorch but unallocated."


def died(*lines: str) -> LogReport:
    """Return what is read of a job of which a rank prints these lines as its last."""
    return read_lines("job.out", [*lines, *(line.format(rank=3, node="nid005101") for line in EXITED)])


@pytest.mark.parametrize(
    ("line", "id_", "words"),
    [
        (PYTORCH.format("HIP", "2.00 GiB", "63.98 GiB", "1.25 GiB"), "gpu-memory-full", "2.00 GiB more"),
        (PYTORCH.format("HIP", "2.00 GiB", "63.98 GiB", "1.25 GiB") + ROCM.format("44 GiB", "16 GiB"), "gpu-memory-full", ""),
        (PYTORCH.format("HIP", "2.00 GiB", "63.98 GiB", "1.25 GiB") + ROCM.format("24 GiB", "1 GiB"), "gpu-memory-shared", "has 24 GiB of"),
        (PYTORCH.format("CUDA", "98 MiB", "39.39 GiB", "114 MiB") + OWN.format("8.11 GiB"), "gpu-memory-shared", "39.39 GiB, and 114 MiB"),
        (PYTORCH.format("CUDA", "98 MiB", "39.39 GiB", "114 MiB") + OWN.format("38.11 GiB"), "gpu-memory-full", "of 39.39 GiB were free"),
        (PYTORCH.format("HIP", "39.41 GiB", "31.98 GiB", "31.9 GiB"), "gpu-request-too-large", "39.41 GiB at once"),
        (PYTORCH.format("HIP", "2.1 TiB", "191.98 GiB", "190 GiB") + OWN.format("1 GiB"), "gpu-request-too-large", ""),
        (OLD.format("2.00 GiB", "31.98 GiB", "28.5 GiB", "0 bytes", "30.1 GiB"), "gpu-memory-full", "0 bytes of 31.98 GiB"),
        (OLD.format("20.00 MiB", "31.75 GiB", "5.5 GiB", "3.94 MiB", "6.1 GiB"), "gpu-memory-shared", "has 6.1 GiB of"),
        (OLD.format("96.00 GiB", "31.75 GiB", "5.5 GiB", "23.9 GiB", "6.1 GiB"), "gpu-request-too-large", "31.75 GiB"),
        ("HIP out of memory", "gpu-out-of-memory", ""),
        ("n1:1:1 [0] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'", "library-out-of-memory", ""),
        ("n1:1:1 [0] enqueue.cc:34 NCCL WARN HIP failure 'out of memory'", "library-out-of-memory", ""),
    ],
)  # fmt: skip
def test_a_full_gpu_is_distinguished_from_a_shared_one_and_from_a_request_that_fits_none(
    line: str, id_: str, words: str
) -> None:
    for rank in ("", "[rank3]: ", "3: "):
        report = died(f"{rank}{line}")
        assert (report.ended.cause, report.causes[0].id) == (id_, id_)
        assert words in report.ended.summary
        assert "64" not in " ".join(report.causes[0].because)


@pytest.mark.parametrize(
    ("line", "id_", "words"),
    [
        (CLR + "Callback: Queue 0x14e Aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources. Code: 0x1008 Available Free mem : 0 MB", "gpu-queue-out-of-resources", ""),
        (CLR + "Device::callbackQueue aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal address. code: 0x29", "gpu-memory-fault", ""),
        (CLR + "Callback: Queue 0x14e aborting with error : HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION: The agent attempted to execute an illegal shader instruction. code: 0x2a", "gpu-code-missing", ""),
        (CLR + "Callback: Queue 0x14e aborting with error : HSA_STATUS_ERROR_INVALID_PACKET_FORMAT: The AQL packet is malformed. code: 0x1009", "hsa-error", "INVALID_PACKET_FORMAT: The AQL packet"),
        ("\tHSA_STATUS_ERROR_MEMORY_FAULT: Agent attempted to access an inaccessible address.", "gpu-memory-fault", ""),
        ("\tHSA_STATUS_ERROR_OUT_OF_REGISTERS: Kernel has requested more VGPRs than are available on this agent.", "gpu-queue-out-of-resources", ""),
        ("\tHSA_STATUS_ERROR: A generic error has occurred.", "hsa-error", "A generic error has occurred"),
        ("HW Exception by GPU node-6 (Agent handle: 0x5d2c10) reason :GPU Hang", "gpu-broken", ""),
        ("HW Exception by GPU node-6 (Agent handle: 0x5d2c10) reason :ECC", "gpu-broken", ""),
        ("Memory access fault by GPU node-6 (Agent handle: 0x5d2c10) on address 0x7f00. Reason: SRAM ECC failure.", "gpu-broken", ""),
        ("Memory access fault by GPU node-6 (Agent handle: 0x5d2c10) on address (nil). Reason: Page not present or supervisor privilege.", "gpu-memory-fault", ""),
        ("RuntimeError: HIP error: unspecified launch failure", "gpu-memory-fault", ""),
        ("[Tue Sep 10 09:37:08 2024] amdgpu 0000:25:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:144 vmid:3 pasid:32769, for process pt_main_thread pid 29 thread pt_main_thread pid 29)", "gpu-memory-fault", ""),
        (CLR + "HSA_AMD_AGENT_INFO_MEMORY_AVAIL query failed.", "amdgpu-driver-too-old", ""),
        ("RuntimeError: HIP error: invalid argument", "gpu-call-failed", "invalid argument"),
        ("torch.AcceleratorError: HIP error: unknown error", "gpu-call-failed", ""),
        ("torch.AcceleratorError: CUDA error: file not found", "gpu-code-missing", ""),
        ("torch.AcceleratorError: HIP error: device-side assert triggered", "gpu-assertion", ""),
        ("../aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: block: [79,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.", "gpu-assertion", ""),
        ("/scratch/loss.hip:40: void nll(float *, int *): Device-side assertion `t >= 0 && t < n' failed.", "gpu-assertion", ""),
        (":1:devprogram.cpp           :1838: 200571714934d us:  Error: The program ISA amdgcn-amd-amdhsa--gfx1100 is not compatible with the device ISA amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-", "gpu-code-of-another", "only for gfx1100, and this GPU is a gfx90a"),
        (":1:devprogram.cpp           :1874: 76368963088 us: [pid:12 tid:0x154c] Error: COMGR failed to get code object ISA name.", "gpu-code-missing", ""),
        ("rocBLAS error: Cannot read /opt/rocm-6.2/lib/rocblas/library/TensileLibrary.dat: Illegal seek", "gpu-code-missing", ""),
        ("rocBLAS error: Cannot read /opt/venv/lib/python3.12/site-packages/torch/lib/rocblas/library/TensileLibrary.dat: No such file or directory for GPU arch : gfx90a", "gpu-code-missing", ""),
        ("rocBLAS error: Cannot read /.singularity.d/libs/../lib/rocblas/library/TensileLibrary.dat: Illegal seek for GPU arch : gfx90a", "rocblas-of-the-host", "the host's"),
        ("torch.AcceleratorError: HIP error: invalid device ordinal", "gpu-number", ""),
        ("node1: Test CUDA failure common.cu:1039 'invalid device ordinal'", "gpu-number", ""),
        ("node1: Test HIP failure common.cu:1129 'no ROCm-capable device is detected'", "gpu-not-seen", ""),
        ("HIP error 100: no ROCm-capable device is detected at main.cpp:12", "gpu-not-seen", ""),
        ("nid005101: Test HIP failure common.cpp:1129 'out of memory'", "gpu-out-of-memory", ""),
        ("RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "gpu-out-of-memory", ""),
        ("RuntimeError: CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasGemmEx( handle, opa)`", "gpu-library-failed", "HIPBLAS_STATUS_INTERNAL_ERROR"),
        ("RuntimeError: Triton Error [HIP]:  Code: 209, Messsage: no kernel image is available for execution on the device", "gpu-code-missing", ""),
        ('"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"', "gpu-code-missing", ""),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 98304, Hardware limit: 65536. Reducing block sizes or `num_stages` may help.", "triton-out-of-resources", "needs 98304 of shared memory, and the GPU has 65536"),
        ("node1: Test HIP failure common.cu:1129 'hipErrorInvalidDevice'", "gpu-number", ""),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "gpu-not-seen", ""),
        ("Unable to open /dev/kfd read-write: Permission denied", "kfd-not-open", ""),
        ("RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.", "cuda-driver-too-old", ""),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12020).", "cuda-driver-too-old", ""),
        ("RuntimeError: DeviceGemmXdl<256, 128, 128, 4> does not support this problem", "kernel-not-available", ""),
        ("MIOpen Error: /MIOpen/src/ocl/convolutionocl.cpp:831: Forward Convolution cannot be executed due to incorrect params", "kernel-not-available", ""),
        ("RuntimeError: CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling `hipblasLtMatmulAlgoGetHeuristic( ltHandle, computeDesc.descriptor()`", "kernel-not-available", ""),
        ("/venv/include/torch/csrc/inductor/aoti_runtime/device_utils.h:14:10: fatal error: hip/hip_runtime.h: No such file or directory", "header-not-found", "hip/hip_runtime.h"),
        ("main.hip:1:10: fatal error: 'rccl/rccl.h' file not found", "header-not-found", "rccl/rccl.h"),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu-busy", ""),
        ("ValueError: Free memory on device (3.1/63.98 GiB) on startup is less than desired GPU memory utilization (0.9, 57.59 GiB).", "gpu-memory-taken", "Only 3.1"),
    ],
)  # fmt: skip
def test_each_way_in_which_a_gpu_or_its_libraries_end_a_job_has_its_own_cause(line: str, id_: str, words: str) -> None:
    report = died(line)
    assert report.ended.cause == id_
    assert words in report.ended.summary
    assert report.causes[0].remedy


def test_the_first_words_of_a_fault_win_over_those_that_follow_on_it() -> None:
    """ROCm prints the assertion, then the queue's error, then PyTorch's; a broken GPU may look like a fault of memory."""
    exception = "Callback: Queue 0x14e aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016"
    for first, id_ in (
        ("/scratch/a.hip:6: void f(): Device-side assertion `false' failed.", "gpu-assertion"),
        ("HW Exception by GPU node-6 (Agent handle: 0x5d2c10) reason :GPU Hang", "gpu-broken"),
    ):
        report = died(first, CLR + exception, "RuntimeError: HIP error: unspecified launch failure")
        assert [cause.id for cause in report.causes] == [id_]


def test_what_the_runtime_or_a_compiler_prints_behind_an_error_is_more_of_it() -> None:
    isa = ":1:devprogram.cpp :1838: 200571714934d us:  Error: The program ISA amdgcn-amd-amdhsa--gfx942 is not compatible with the device ISA amdgcn-amd-amdhsa--gfx90a"
    after_isa = [
        "Error: create kernel metadata map using COMgr",
        "Error: Cannot Find Global Var Sizes",
        "Error: Cannot create kernels.",
    ]
    header = "/tmp/x.hpp:14:10: fatal error: hip/hip_runtime.h: No such file or directory"
    after_header = [
        "   14 | #include <hip/hip_runtime.h>",
        "      |          ^~~~~~~~~~~~~~~~~~~",
        "compilation terminated.",
    ]
    for lines, id_ in (([isa, *after_isa], "gpu-code-of-another"), ([header, *after_header], "header-not-found")):
        ended = read_lines("job.out", lines).ended
        assert (ended.cause, ended.is_likely) == (id_, False)
        assert read_lines("job.out", [*lines, "step 12"]).ended.is_likely


def test_rocm_smi_without_a_driver_is_to_be_run_in_the_job_that_has_the_gpus() -> None:
    (cause,) = (one for one in read_lines("job.out", [AMDGPU]).causes if one.id == "amdgpu-not-loaded")
    commands = [step.command or "" for step in cause.remedy]
    assert all(command.startswith("srun --overlap --jobid=") for command in commands), "no new node is asked for"
    assert "rocm-smi" in commands[0]
