"""Makes "cuda" work in the CPU build of torch: PyTorch's own caching allocator over the simulated CUDA runtime, and CPU kernels.

    import torch
    import sim_cuda  # ordinary code with device="cuda" works from here on

Three libraries are loaded, in this order: the simulated libcudart.so.13 (SIM_CUDART), libc10_cuda.so of torch's CUDA build
(SIM_C10_CUDA), and the kernels (SIM_CUDA_KERNELS). Of torch.cuda, what training scripts call is replaced; streams, graphs and NVML are not.
"""

import collections
import contextlib
import ctypes
import functools
import os
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def _load():
    """The kernels' library, started. The loader finds the simulation by its soname, whatever cudart the system has."""
    built = ROOT / "build" / "tests" / "cuda"
    ctypes.CDLL(os.environ.get("SIM_CUDART", built / "sim" / "plain" / "libcudart.so.13"), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(os.environ.get("SIM_C10_CUDA", ROOT / ".cache" / "c10_cuda" / "libc10_cuda.so"))
    library = ctypes.CDLL(os.environ.get("SIM_CUDA_KERNELS", built / "device" / "libsim_cuda_kernels.so"))
    library.sim_cuda_error.restype = ctypes.c_char_p
    library.sim_cuda_stat.restype = ctypes.c_int64
    library.sim_cuda_set_fraction.argtypes = [ctypes.c_int, ctypes.c_double]
    library.sim_cuda_seed.argtypes = [ctypes.c_int, ctypes.c_uint64]
    if library.sim_cuda_start() != 0:
        raise RuntimeError(library.sim_cuda_error().decode())
    return library


_library = _load()


def _index(device=None):
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        device = device.index
    return _library.sim_cuda_current_device() if device is None else int(device)


# ---- devices -----------------------------------------------------------------------------------------------------------------


def _set_device(device):
    if _index(device) >= 0:
        _library.sim_cuda_set_device(_index(device))


def _exchange_device(device):
    before = _library.sim_cuda_current_device()
    _set_device(device)
    return before


class _Device:
    """torch.cuda.device, a context manager."""

    def __init__(self, device):
        self.idx = _index(device)

    def __enter__(self):
        self.before = _exchange_device(self.idx)

    def __exit__(self, *_):
        _set_device(self.before)


_Properties = collections.namedtuple("_Properties", "name major minor total_memory multi_processor_count")


def _properties(device=None):
    return _Properties("Simulated CUDA", 9, 0, _mem_get_info(device)[1], 132)


# ---- memory ------------------------------------------------------------------------------------------------------------------

_FIGURES = {"allocated_bytes": 0, "reserved_bytes": 1, "requested_bytes": 2, "active_bytes": 3, "allocation": 6, "segment": 7}
_PARTS = ("current", "peak", "allocated", "freed")


def _memory_stats(device=None):
    stats = {f"{name}.all.{part}": _library.sim_cuda_stat(_index(device), figure, which)
             for name, figure in _FIGURES.items() for which, part in enumerate(_PARTS)}
    stats["num_ooms"] = _library.sim_cuda_stat(_index(device), 4, 0)
    stats["num_alloc_retries"] = _library.sim_cuda_stat(_index(device), 5, 0)
    return collections.OrderedDict(stats)


def _stat(figure, which):
    return lambda device=None: _library.sim_cuda_stat(_index(device), figure, which)


def _mem_get_info(device=None):
    free, total = ctypes.c_int64(), ctypes.c_int64()
    _library.sim_cuda_memory(_index(device), ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


# ---- random numbers ----------------------------------------------------------------------------------------------------------


def _get_rng_state(device=None):
    state = torch.empty(16, dtype=torch.uint8, device="cpu")
    _library.sim_cuda_get_generator(_index(device), ctypes.c_void_p(state.data_ptr()))
    return state


def _set_rng_state(state, device=None):
    state = state.cpu().contiguous()
    assert state.numel() == 16 and state.dtype == torch.uint8, "a generator's state is sixteen bytes"
    _library.sim_cuda_set_generator(_index(device), ctypes.c_void_p(state.data_ptr()))


def _devices():
    return range(_library.sim_cuda_devices())


def _manual_seed(seed):
    _library.sim_cuda_seed(_index(), int(seed) & (2**64 - 1))


def _manual_seed_all(seed):
    for device in _devices():
        _library.sim_cuda_seed(device, int(seed) & (2**64 - 1))


# ---- storages: the CPU build knows no storage on CUDA ------------------------------------------------------------------------


def _bytes_of(storage):
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _patch_storages():
    clone, to = torch.UntypedStorage.clone, torch.UntypedStorage.to

    @functools.wraps(clone)
    def storage_clone(self):
        return _bytes_of(self).clone().untyped_storage() if self.device.type == "cuda" else clone(self)

    @functools.wraps(to)
    def storage_to(self, *, device, non_blocking=False):
        device = torch.device(device)
        if "cuda" not in (self.device.type, device.type):
            return to(self, device=device, non_blocking=non_blocking)
        return _bytes_of(self).to(device).untyped_storage()

    torch.UntypedStorage.clone, torch.UntypedStorage.to = storage_clone, storage_to


# ---- torch.cuda --------------------------------------------------------------------------------------------------------------


def _replacements():
    def nothing(*_, **__):
        return None

    return {
        "is_available": lambda: len(_devices()) > 0,
        "is_initialized": lambda: True,
        "_lazy_init": nothing,
        "init": nothing,
        "_lazy_call": lambda function, **_: function(),
        "device_count": lambda: len(_devices()),
        "current_device": lambda: _library.sim_cuda_current_device(),
        "set_device": _set_device,
        "device": _Device,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "get_device_name": lambda device=None: "Simulated CUDA",
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": _properties,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "synchronize": nothing,
        "ipc_collect": nothing,
        "empty_cache": lambda: _library.sim_cuda_empty_cache(),
        "memory_allocated": _stat(0, 0),
        "max_memory_allocated": _stat(0, 1),
        "memory_reserved": _stat(1, 0),
        "max_memory_reserved": _stat(1, 1),
        "memory_stats": _memory_stats,
        "reset_peak_memory_stats": lambda device=None: _library.sim_cuda_reset_peak(_index(device)),
        "mem_get_info": _mem_get_info,
        "set_per_process_memory_fraction":
            lambda fraction, device=None: _library.sim_cuda_set_fraction(_index(device), float(fraction)),
        "manual_seed": _manual_seed,
        "manual_seed_all": _manual_seed_all,
        "seed": lambda: _manual_seed(torch.seed()),
        "seed_all": lambda: _manual_seed_all(torch.seed()),
        "initial_seed": lambda: _get_rng_state()[:8].view(torch.int64).item() % 2**64,
        "get_rng_state": _get_rng_state,
        "set_rng_state": _set_rng_state,
        "get_rng_state_all": lambda: [_get_rng_state(device) for device in _devices()],
        "set_rng_state_all": lambda states: [_set_rng_state(state, device) for device, state in enumerate(states)] and None,
    }


def _patch():
    # The functions live in submodules too, and those call each other by name.
    for name, function in _replacements().items():
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, function)
    torch.cuda._initialized = True  # checkpoints keep the device's generator only then
    _patch_storages()


_patch()


_kept = []


def _let_go_of_modes():
    """The engine's thread of the device keeps the modes of its last backward pass, and lets go of them, with Python's lock, some time after the pass: where Python
    has ended by then, plain PyTorch aborts. A pass without a mode, and without a byte of memory, takes that pass's place. Its leaf is kept: the thread may be the
    last to let go of it too."""
    leaf = torch.empty(0, device="cuda", requires_grad=True)
    leaf.backward(torch.empty(0, device="cuda"))
    _kept.append(leaf)
    time.sleep(0.2)  # nothing says when the thread has done so


@contextlib.contextmanager
def cuda_by_default():
    """Tensors that a program makes without naming a device are the device's."""
    with torch.device("cuda"):
        yield
    _let_go_of_modes()
