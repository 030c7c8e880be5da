"""libflux from Python: bundles of compiled kernels, launched on tensors where they are.

Needs the standard library alone. A tensor is whatever has `__dlpack__` (PyTorch, JAX, NumPy, CuPy), or
`Matrix` over a buffer. `check.py` beside this file shows all of it at work.

    flux = Flux("libflux.so")
    world = flux.world("gpu:1")
    kernel = world.load(flux.bundle("gemm_bf16.flux-bundle"))
    kernel.launch([[a, b, c]], stream=torch.cuda.current_stream().cuda_stream)
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

ABI = 1
OK, INVALID, UNAVAILABLE, STALLED, FAILED, PANIC = range(6)
SCALAR, BF16, F16, F32 = range(4)
HOST = -1
OWN_STREAM = c_uint64(-1).value
BYTES = {BF16: 2, F16: 2, F32: 4}


class FluxError(Exception):
    """What a function of the library failed with: `status`, and a sentence."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Argument(ctypes.Structure):
    """`flux_argument`."""

    _fields_ = [
        ("data", c_void_p),
        ("rows", c_uint64),
        ("cols", c_uint64),
        ("dtype", c_int32),
        ("device", c_int32),
        ("value", c_float),
        ("reserved", c_uint32),
    ]


class Ranks(ctypes.Structure):
    """`flux_ranks`."""

    _fields_ = [("world", c_uint32), ("first", c_uint32), ("count", c_uint32)]


class Parameter(ctypes.Structure):
    """`flux_parameter`."""

    _fields_ = [("name", c_char_p), ("dtype", c_int32), ("distribution", c_int32), ("written", c_int32)]


SIGNATURES = {
    "flux_world_open": [c_char_p, c_uint64, POINTER(c_uint64)],
    "flux_world_ranks": [c_uint64, POINTER(Ranks)],
    "flux_rank_device": [c_uint64, c_uint32, POINTER(c_int32)],
    "flux_synchronize": [c_uint64],
    "flux_recover": [c_uint64],
    "flux_close": [c_uint64],
    "flux_bundle_open": [c_char_p, POINTER(c_uint64)],
    "flux_bundle_name": [c_uint64, POINTER(c_char_p)],
    "flux_bundle_parameters": [c_uint64, POINTER(c_size_t)],
    "flux_bundle_parameter": [c_uint64, c_size_t, POINTER(Parameter)],
    "flux_kernel_load": [c_uint64, c_uint64, c_char_p, POINTER(c_uint64)],
    "flux_launch": [c_uint64, POINTER(Argument), c_size_t, POINTER(c_uint64), c_uint64],
    "flux_launch_rank": [c_uint64, c_uint32, POINTER(Argument), c_size_t, POINTER(c_uint64), c_uint64],
    "flux_argument_of_dlpack": [c_void_p, c_int32, c_int32, POINTER(Argument)],
    "flux_symmetric_open": [c_uint64, c_uint64, c_uint64, c_int32, POINTER(c_uint64)],
    "flux_symmetric_dlpack": [c_uint64, c_uint32, c_uint32, c_int32, POINTER(c_void_p)],
}

CAPSULES = [(1, b"dltensor_versioned"), (0, b"dltensor")]


def python(name, result, *parameters):
    """A function of Python's own C API."""
    return ctypes.PYFUNCTYPE(result, *parameters)((name, ctypes.pythonapi))


capsule_is_valid = python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, c_char_p)
capsule_pointer = python("PyCapsule_GetPointer", c_void_p, ctypes.py_object, c_char_p)
capsule_new = python("PyCapsule_New", ctypes.py_object, c_void_p, c_char_p, c_void_p)


class Matrix:
    """A row-major matrix in a writable buffer of the host, such as an `array`."""

    def __init__(self, buffer, rows, cols, dtype):
        whole = ctypes.c_char * (rows * cols * BYTES[dtype])
        self.held = whole.from_buffer(buffer)  # refuses a buffer that is too small
        address = ctypes.addressof(self.held)
        self.argument = Argument(address, rows, cols, dtype, HOST, 0.0, 0)


class Flux:
    """The library."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        self.library.flux_last_error.restype = c_char_p
        self.library.flux_version.restype = c_char_p
        self.library.flux_abi.restype = c_uint32
        for name, parameters in SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = parameters, c_int32
        found = self.library.flux_abi()
        if found != ABI:
            raise FluxError(INVALID, f"{path} has version {found} of its functions, expected {ABI}")

    def version(self):
        return self.library.flux_version().decode()

    def call(self, name, *values):
        status = getattr(self.library, name)(*values)
        if status != OK:
            raise FluxError(status, self.library.flux_last_error().decode())

    def opened(self, name, *values):
        """The handle that a function gives."""
        handle = c_uint64()
        self.call(name, *values, byref(handle))
        return handle.value

    def world(self, name, limit_ms=0):
        return World(self, self.opened("flux_world_open", name.encode(), limit_ms))

    def bundle(self, path):
        return Bundle(self, self.opened("flux_bundle_open", str(path).encode()))

    def argument(self, value, written):
        """What is passed for a number, a `Matrix` or a tensor, and what has to be kept meanwhile."""
        if isinstance(value, (int, float)):
            return Argument(None, 0, 0, SCALAR, HOST, value, 0), None
        if isinstance(value, Matrix):
            return value.argument, value
        # No stream is waited for: the launch comes on one that the caller names.
        on_device = value.__dlpack_device__()[0] == 2
        capsule = value.__dlpack__(stream=-1) if on_device else value.__dlpack__()
        for versioned, name in CAPSULES:
            if capsule_is_valid(capsule, name):
                argument = Argument()
                managed = capsule_pointer(capsule, name)
                self.call("flux_argument_of_dlpack", managed, versioned, int(written), byref(argument))
                return argument, (value, capsule)
        raise FluxError(INVALID, f"{type(value).__name__}.__dlpack__ gave no tensor")


class Handle:
    """Something that is open until it is closed, or nobody has it any more."""

    def __init__(self, flux, handle):
        self.flux, self.handle = flux, handle

    def close(self):
        handle, self.handle = self.handle, 0
        if handle:
            self.flux.call("flux_close", handle)

    def __del__(self):
        try:
            self.close()
        except Exception:  # the interpreter ends
            pass


class Bundle(Handle):
    """A compiled kernel in a file."""

    def name(self):
        name = c_char_p()
        self.flux.call("flux_bundle_name", self.handle, byref(name))
        return name.value.decode()

    def parameters(self):
        """Name, type, distribution and whether it is written, of each."""
        count, found = c_size_t(), []
        self.flux.call("flux_bundle_parameters", self.handle, byref(count))
        for index in range(count.value):
            one = Parameter()
            self.flux.call("flux_bundle_parameter", self.handle, index, byref(one))
            found.append((one.name.decode(), one.dtype, one.distribution, one.written == 1))
        return found


class World(Handle):
    """Ranks; those of this process are numbered from `first`."""

    def ranks(self):
        found = Ranks()
        self.flux.call("flux_world_ranks", self.handle, byref(found))
        return found

    def device(self, rank):
        found = c_int32()
        self.flux.call("flux_rank_device", self.handle, rank, byref(found))
        return found.value

    def load(self, bundle, schedule=None):
        words = None if schedule is None else schedule.encode()
        handle = self.flux.opened("flux_kernel_load", self.handle, bundle.handle, words)
        return Kernel(self.flux, handle, bundle.parameters())

    def synchronize(self):
        self.flux.call("flux_synchronize", self.handle)

    def recover(self):
        self.flux.call("flux_recover", self.handle)

    def symmetric(self, rows, cols, dtype):
        values = (self.handle, rows, cols, dtype)
        return Symmetric(self.flux, self.flux.opened("flux_symmetric_open", *values), self)


class Kernel(Handle):
    """A kernel on every rank of this process."""

    def __init__(self, flux, handle, parameters):
        super().__init__(flux, handle)
        self.written = [parameter[3] for parameter in parameters]

    def prepared(self, ranks):
        """Arguments as the library takes them, of a list for each rank. They serve any number of
        launches, as long as what they are made of is kept."""
        made = []
        for values in ranks:
            # One too many is told by the library.
            written = self.written + [False] * max(0, len(values) - len(self.written))
            made += [self.flux.argument(*pair) for pair in zip(values, written)]
        arguments = (Argument * len(made))(*[argument for argument, _ in made])
        return arguments, [held for _, held in made]

    def launch(self, ranks, stream=OWN_STREAM, rows=None):
        """Launches on all ranks of this process: a list of arguments for each. `rows` are those that each
        rank of the world owns, where shards are not even."""
        arguments, held = self.prepared(ranks)
        rows = None if rows is None else (c_uint64 * len(rows))(*rows)
        self.flux.call("flux_launch", self.handle, arguments, len(arguments), rows, stream)
        del held

    def launch_rank(self, rank, values, stream=OWN_STREAM):
        """Launches on one rank, on a thread of its own."""
        arguments, held = self.prepared([values])
        self.flux.call("flux_launch_rank", self.handle, rank, arguments, len(arguments), None, stream)
        del held


class Symmetric(Handle):
    """A matrix on every rank, which all of them reach."""

    def __init__(self, flux, handle, world):
        super().__init__(flux, handle)
        self.world = world

    def part(self, rank, of):
        """The matrix of rank `of` as the GPU of `rank` sees it, for `torch.from_dlpack`."""
        return Part(self, rank, of)


class Part:
    """A tensor for whoever takes DLPack."""

    def __init__(self, symmetric, rank, of):
        self.symmetric, self.rank, self.of = symmetric, rank, of

    def __dlpack_device__(self):
        return (2, self.symmetric.world.device(self.of))

    def __dlpack__(self, *, stream=None, max_version=None, **_):
        versioned, name = CAPSULES[0 if max_version and max_version[0] >= 1 else 1]
        managed, flux = c_void_p(), self.symmetric.flux
        values = (self.symmetric.handle, self.rank, self.of, versioned)
        flux.call("flux_symmetric_dlpack", *values, byref(managed))
        # Whoever takes the capsule owns the tensor; one that nobody takes stays until the process ends.
        return capsule_new(managed, name, None)
