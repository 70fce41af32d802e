"""Compile one CUDA kernel and launch it: NVRTC (which comes with PyTorch) and the CUDA driver, through ctypes."""

import ctypes
import glob
import os
import shutil
import subprocess
import sys
import tempfile

import torch


def compile_cubin(source, defines):
    """Machine code for the current GPU from CUDA C++ source text; by NVRTC, or by nvcc where NVRTC is not found."""
    major, minor = torch.cuda.get_device_capability()
    options = [f"-arch=sm_{major}{minor}", "-std=c++17", *(f"-D{name}={value}" for name, value in defines.items())]
    nvrtc, nvcc = find_nvrtc(), shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvrtc is not None and nvcc is None:
        return compile_with_nvrtc(nvrtc, source, options)
    if nvrtc is not None:
        try:
            return compile_with_nvrtc(nvrtc, source, options)
        except RuntimeError as error:  # nvcc knows more headers, and says the same if the source is at fault
            print(error)
    if nvcc is None:
        raise RuntimeError("neither NVRTC nor nvcc was found")
    with tempfile.TemporaryDirectory() as folder:
        code, cubin = os.path.join(folder, "kernel.cu"), os.path.join(folder, "kernel.cubin")
        with open(code, "w") as stream:
            stream.write(source)
        done = subprocess.run([nvcc, *options, "-cubin", code, "-o", cubin], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"nvcc failed:\n{done.stderr}")
        with open(cubin, "rb") as stream:
            return stream.read()


def find_nvrtc():
    """The NVRTC library of PyTorch's CUDA version, or None."""
    version = (torch.version.cuda or "").split(".")[0]
    name = f"libnvrtc.so.{version}"
    places = [path for root in sys.path for path in glob.glob(os.path.join(root, "nvidia", "*", "lib", name))]
    places += glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "libnvrtc*.so*"))
    for place in [*places, name, f"/usr/local/cuda/lib64/{name}"]:
        try:
            # NVRTC opens its second half by name, which succeeds once that half is loaded.
            for builtins in glob.glob(os.path.join(os.path.dirname(place), "libnvrtc-builtins.so*")):
                ctypes.CDLL(builtins, ctypes.RTLD_GLOBAL)
            library = ctypes.CDLL(place)
        except OSError:
            continue
        if hasattr(library, "nvrtcGetCUBIN"):
            return library
    return None


def compile_with_nvrtc(nvrtc, source, options):
    program = ctypes.c_void_p()
    check_nvrtc(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    raw = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), raw)
    if failed:
        size = ctypes.c_size_t()
        check_nvrtc(nvrtc, nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        check_nvrtc(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"NVRTC failed:\n{log.value.decode(errors='replace')}")
    size = ctypes.c_size_t()
    check_nvrtc(nvrtc, nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    check_nvrtc(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
    check_nvrtc(nvrtc, nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))
    return cubin.raw


def check_nvrtc(nvrtc, code):
    if code:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC: {nvrtc.nvrtcGetErrorString(code).decode()}")


class Kernel:
    """A kernel of a cubin, in PyTorch's context of the current device.

    `arguments` are the ctypes types of its parameters, in order.
    """

    def __init__(self, cubin, name, arguments):
        torch.cuda.current_stream()  # makes sure that the context exists
        self.cuda = ctypes.CDLL("libcuda.so.1")
        module = ctypes.c_void_p()
        self.function = ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), cubin))
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, name.encode()))
        self.values = [kind() for kind in arguments]
        self.pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in self.values))

    def launch(self, blocks, threads, *arguments):
        """Launch on PyTorch's current stream."""
        for value, argument in zip(self.values, arguments, strict=True):
            value.value = argument
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.cuda.cuLaunchKernel(self.function, blocks, 1, 1, threads, 1, 1, 0, stream, self.pointers, None))

    def check(self, code):
        if code:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"CUDA: {(text.value or b'unknown error').decode()} ({code})")
