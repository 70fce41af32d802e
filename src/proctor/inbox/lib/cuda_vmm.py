"""GPU memory shared between processes by file descriptor, through the CUDA virtual-memory API.

The owner creates physical memory, exports it as descriptors and maps it; another process imports the descriptors and
maps the same memory at addresses of its own. Descriptors cross pid, ipc and user namespaces, which makes this the way
to lend arrays to a boxed process. Standard library only (ctypes on libcuda). Every call needs a current CUDA context
in the calling thread, which a framework makes on first use.

Source: CUDA Driver API reference, "Virtual Memory Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

_ALLOCATION_PINNED = 1
_HANDLE_POSIX_FD = 1
_LOCATION_DEVICE = 1
_ACCESS_READ_WRITE = 3
_GRANULARITY_MINIMUM = 0


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; the message has the call and the error's name."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocationFlags(ctypes.Structure):
    _fields_ = (
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _AllocationProperties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_handle_metadata", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    )


class _AccessDescription(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class Memory:
    """The virtual-memory calls on one device, by its CUDA ordinal in this process.

    Raises:
        CudaError: Any driver call that fails, here and in every method.
    """

    def __init__(self, device: int = 0) -> None:
        try:
            self._cuda: Any = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"the CUDA driver library cannot be loaded: {error}") from None
        self._device = device
        self._where = _Location(_LOCATION_DEVICE, device)
        self._properties = _AllocationProperties(
            _ALLOCATION_PINNED, _HANDLE_POSIX_FD, self._where, None, _AllocationFlags()
        )
        granularity = ctypes.c_size_t()
        self._call(
            "cuMemGetAllocationGranularity",
            ctypes.byref(granularity),
            ctypes.byref(self._properties),
            ctypes.c_int(_GRANULARITY_MINIMUM),
        )
        self.granularity = granularity.value
        """Sizes of physical memory are multiples of this, in bytes."""

    def rounded(self, size: int) -> int:
        """`size` in bytes, rounded up to the granularity."""
        return -(-size // self.granularity) * self.granularity

    def create(self, size: int) -> int:
        """New physical memory of `size` bytes (a multiple of the granularity); returns its handle."""
        handle = ctypes.c_ulonglong()
        self._call(
            "cuMemCreate",
            ctypes.byref(handle),
            ctypes.c_size_t(size),
            ctypes.byref(self._properties),
            ctypes.c_ulonglong(0),
        )
        return handle.value

    def export(self, handle: int) -> int:
        """A file descriptor by which another process can import `handle`; the caller closes it."""
        fd = ctypes.c_int(-1)
        self._call(
            "cuMemExportToShareableHandle",
            ctypes.byref(fd),
            ctypes.c_ulonglong(handle),
            ctypes.c_int(_HANDLE_POSIX_FD),
            ctypes.c_ulonglong(0),
        )
        return fd.value

    def load(self, fd: int) -> int:
        """The handle of memory that another process exported as `fd`."""
        handle = ctypes.c_ulonglong()
        self._call(
            "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), ctypes.c_int(_HANDLE_POSIX_FD)
        )
        return handle.value

    def map(self, handles: Sequence[int], size: int) -> int:
        """Map memory of `size` bytes each, one after the other, readable and writable; returns the first address."""
        total = size * len(handles)
        address = ctypes.c_ulonglong()
        zero = ctypes.c_ulonglong(0)
        self._call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(total), ctypes.c_size_t(0), zero, zero)
        for i, handle in enumerate(handles):
            self._call(
                "cuMemMap",
                ctypes.c_ulonglong(address.value + i * size),
                ctypes.c_size_t(size),
                ctypes.c_size_t(0),
                ctypes.c_ulonglong(handle),
                zero,
            )
        access = _AccessDescription(self._where, _ACCESS_READ_WRITE)
        self._call("cuMemSetAccess", address, ctypes.c_size_t(total), ctypes.byref(access), ctypes.c_size_t(1))
        return address.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._cuda, name)(*arguments))
        if code:
            text = ctypes.c_char_p()
            known = self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) == 0 and text.value
            shown = text.value.decode() if known and text.value else "unknown error"
            raise CudaError(f"{name} on CUDA device {self._device} failed: {shown} ({code})")


class View:
    """`count` int32 at a device address, for whatever reads `__cuda_array_interface__` (`torch.as_tensor` does)."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "<i4",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }
