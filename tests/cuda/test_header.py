"""Every function of CUDA's headers that may give or take memory is hooked, or known by name for a reason not to be.

So a newer toolkit's new function fails here, by name. tests/cuda/header_test.cc holds the signatures against the header's.
"""

import pathlib
import re
import subprocess

import pytest
from programs import BUILD, ROOT

TOOLKIT = pathlib.Path("/usr/local/cuda")
SUSPECT = re.compile(
    "[Aa]lloc|Free|MemGetInfo|HostRegister|HostUnregister|DeviceReset|CtxReset$|CtxDestroy|EntryPoint|ProcAddress|Pool|Ipc.*Mem"
    "|Import.*Mem|MemImport|ExternalMemory"
    "|GraphMem[A-Z]|MemCreate|MemMap|MemUnmap|MemRelease|MemRetain|Array.*Create|Array.*Destroy|Multicast|AddressReserve"
)

POOL = "what it gives comes by cudaMallocAsync, which is hooked"
OTHERS = "memory of another process or interface, which is on that one's account"
QUESTION = "a question"
ADDRESSES = "addresses, and no memory"
GRAPH = "a graph's own memory: given when the graph runs, not here; untracked"
SETTING = "a setting"

RUNTIME = {
    "cudaDestroyExternalMemory": OTHERS,
    "cudaDeviceGetDefaultMemPool": POOL,
    "cudaDeviceGetGraphMemAttribute": QUESTION,
    "cudaDeviceGetMemPool": POOL,
    "cudaDeviceGraphMemTrim": GRAPH,
    "cudaDeviceSetGraphMemAttribute": SETTING,
    "cudaDeviceSetMemPool": POOL,
    "cudaExternalMemoryGetMappedBuffer": OTHERS,
    "cudaExternalMemoryGetMappedMipmappedArray": OTHERS,
    "cudaGraphAddMemAllocNode": GRAPH,
    "cudaGraphAddMemFreeNode": GRAPH,
    "cudaGraphMemAllocNodeGetParams": QUESTION,
    "cudaGraphMemFreeNodeGetParams": QUESTION,
    "cudaImportExternalMemory": OTHERS,
    "cudaIpcCloseMemHandle": OTHERS,
    "cudaIpcGetMemHandle": QUESTION,
    "cudaIpcOpenMemHandle": OTHERS,
    "cudaMemGetDefaultMemPool": POOL,
    "cudaMemGetMemPool": POOL,
    "cudaMemPoolCreate": POOL,
    "cudaMemPoolDestroy": "a pool's blocks must have been freed before",
    "cudaMemPoolExportPointer": QUESTION,
    "cudaMemPoolExportToShareableHandle": QUESTION,
    "cudaMemPoolGetAccess": QUESTION,
    "cudaMemPoolGetAttribute": QUESTION,
    "cudaMemPoolImportFromShareableHandle": OTHERS,
    "cudaMemPoolImportPointer": OTHERS,
    "cudaMemPoolSetAccess": SETTING,
    "cudaMemPoolSetAttribute": SETTING,
    "cudaMemPoolTrimTo": "of what a pool keeps after cudaFreeAsync, which has been counted as freed",
    "cudaMemSetMemPool": POOL,
}

TEXTURE = "an array by the driver's interface, which graphics use: untracked"
CONTEXT = "the context by the driver's interface: whoever destroys it frees unseen what it held"

DRIVER = {
    "cuArray3DCreate": TEXTURE,
    "cuArrayCreate": TEXTURE,
    "cuArrayDestroy": TEXTURE,
    "cuCtxDestroy": CONTEXT,
    "cuDestroyExternalMemory": OTHERS,
    "cuDeviceGetDefaultMemPool": POOL,
    "cuDeviceGetGraphMemAttribute": QUESTION,
    "cuDeviceGetMemPool": POOL,
    "cuDeviceGraphMemTrim": GRAPH,
    "cuDevicePrimaryCtxReset": CONTEXT,
    "cuDeviceSetGraphMemAttribute": SETTING,
    "cuDeviceSetMemPool": POOL,
    "cuExternalMemoryGetMappedBuffer": OTHERS,
    "cuExternalMemoryGetMappedMipmappedArray": OTHERS,
    "cuGetProcAddress": "the way of the runtimes themselves; a program that takes it is not seen",
    "cuGraphAddMemAllocNode": GRAPH,
    "cuGraphAddMemFreeNode": GRAPH,
    "cuGraphMemAllocNodeGetParams": QUESTION,
    "cuGraphMemFreeNodeGetParams": QUESTION,
    "cuGreenCtxDestroy": CONTEXT,
    "cuImportExternalMemory": OTHERS,
    "cuIpcCloseMemHandle": OTHERS,
    "cuIpcGetMemHandle": QUESTION,
    "cuIpcOpenMemHandle": OTHERS,
    "cuMemAddressFree": ADDRESSES,
    "cuMemAddressReserve": ADDRESSES,
    "cuMemGetAllocationGranularity": QUESTION,
    "cuMemGetAllocationPropertiesFromHandle": QUESTION,
    "cuMemGetDefaultMemPool": POOL,
    "cuMemGetMemPool": POOL,
    "cuMemImportFromShareableHandle": OTHERS,
    "cuMemMapArrayAsync": "maps into sparse arrays, which only graphics have",
    "cuMemPoolCreate": POOL,
    "cuMemPoolDestroy": POOL,
    "cuMemPoolExportPointer": QUESTION,
    "cuMemPoolExportToShareableHandle": QUESTION,
    "cuMemPoolGetAccess": QUESTION,
    "cuMemPoolGetAttribute": QUESTION,
    "cuMemPoolImportFromShareableHandle": OTHERS,
    "cuMemPoolImportPointer": OTHERS,
    "cuMemPoolSetAccess": SETTING,
    "cuMemPoolSetAttribute": SETTING,
    "cuMemPoolTrimTo": POOL,
    "cuMemSetMemPool": POOL,
    "cuMipmappedArrayCreate": TEXTURE,
    "cuMipmappedArrayDestroy": TEXTURE,
    "cuMulticastAddDevice": ADDRESSES,
    "cuMulticastBindAddr": ADDRESSES,
    "cuMulticastBindMem": ADDRESSES,
    "cuMulticastCreate": ADDRESSES,
    "cuMulticastGetGranularity": QUESTION,
    "cuMulticastUnbind": ADDRESSES,
}

TWIN = re.compile(r"_pt(sz|ds)$")


def declared(header: str, convention: str) -> set[str]:
    path = TOOLKIT / "include" / header
    if not path.exists():
        pytest.skip(f"no {path}")
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text(), flags=re.DOTALL)
    return set(re.findall(rf"\b{convention}\s+(cu\w+)\s*\(", text))


def listed(file: str) -> set[str]:
    return set(re.findall(r"^KOILA_\w+\((\w+),", (ROOT / "shim" / "cuda" / file).read_text(), re.MULTILINE))


def exported(library: pathlib.Path) -> set[str]:
    if not library.exists():
        pytest.skip(f"no {library}")
    lines = subprocess.run(["nm", "-D", "--defined-only", "-P", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0].split("@")[0] for line in lines}


def check(names: set[str], hooked: set[str], others: dict[str, str]) -> None:
    suspects = {name for name in names if SUSPECT.search(name)}
    assert suspects - hooked - set(others) == set(), "neither hooked nor known: each needs a hook, or a reason here"
    assert hooked - names == set(), "hooked, and not in the header"
    assert set(others) & hooked == set()
    assert set(others) - suspects == set(), "no longer in the header"


def test_runtime() -> None:
    names = declared("cuda_runtime_api.h", "CUDARTAPI")
    assert len(names) > 250
    check(names, {name for name in listed("functions.inc") if not TWIN.search(name)}, RUNTIME)


def test_driver() -> None:
    names = {re.sub(r"(_v\d+)?(_pt(sz|ds))?$", "", name) for name in declared("cuda.h", "CUDAAPI")}
    assert len(names) > 400
    check(names, listed("driver_functions.inc"), DRIVER)


def test_twins_for_default_streams_per_thread() -> None:
    """The header makes them by macros; the library has them by name."""
    names = exported(TOOLKIT / "lib64" / "libcudart.so")
    twins = {name for name in names if TWIN.search(name) and TWIN.sub("", name) in listed("functions.inc")}
    assert twins == {name for name in listed("functions.inc") if TWIN.search(name)}
    assert listed("functions.inc") <= names


def test_every_listed_function_is_defined_and_no_other() -> None:
    preloads = {name for name in exported(BUILD / "lib" / "libkoila.so") if name.startswith("cuda")}
    assert preloads == listed("functions.inc")


def test_a_new_function_would_be_found() -> None:
    with pytest.raises(AssertionError, match="cudaMallocElsewhere"):
        check({"cudaMalloc", "cudaMallocElsewhere"}, {"cudaMalloc"}, {})
