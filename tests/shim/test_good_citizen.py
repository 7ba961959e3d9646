"""Every child of a program under LD_PRELOAD inherits it: none of them may notice."""

import re
import subprocess
import sys

import pytest
from preload import BUILD, ROOT, Preload, clean_environment


def plain(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    "command",
    [
        ["ls", "-d", "/"],
        ["bash", "-c", "echo a; (echo b); exit 3"],
        ["bash", "-c", "ls -d / | cat; kill -TERM $$"],
        ["sh", "-c", "cat /proc/self/maps > /dev/null; ldd /bin/ls > /dev/null && echo ok"],
        ["env", "true"],
        ["false"],
        ["g++", "--version"],
        [sys.executable, "-c", "1"],
        [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"],
        [sys.executable, "-c", "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', 'print(1)']))"],
        [sys.executable, "-c", "import os; os.fork(); os.write(1, b'x\\n')"],
        [sys.executable, "-c", "import os; os._exit(5)"],
        [sys.executable, "-c", "import ctypes, sqlite3, ssl, json, decimal, numpy; print(numpy.ones(3).sum())"],
    ],
    ids=" ".join,
)
def test_programs_without_torch_are_untouched(real: Preload, command: list[str]) -> None:
    # Values that would each be worth a line in a process with torch.
    variables = {"KOILA_CPU_MEMORY": "nonsense", "KOILA_UNKNOWN": "1", "KOILA_REPORT": "/nonexistent/report.json"}
    with_koila, without = real.run(*command, **variables), plain(*command)
    assert (with_koila.returncode, with_koila.stdout, with_koila.stderr) == (without.returncode, without.stdout, without.stderr)


def test_needs_no_library_that_a_process_may_lack() -> None:
    dynamic = plain("readelf", "-d", "-W", str(BUILD / "lib" / "libkoila.so")).stdout
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line}
    loaders = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert needed <= {"libc.so.6", "libm.so.6"} | loaders
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


def test_exports_the_hooks_and_the_c_abi_only() -> None:
    names = plain("nm", "-D", "--defined-only", "-P", str(BUILD / "lib" / "libkoila.so")).stdout.splitlines()
    exported = {line.split()[0] for line in names if not line.startswith("cuda")}  # those: tests/cuda/test_header.py
    hooks = {
        "initModule",
        "kill",  # see shim/interrupt.cc
        "pthread_create",  # threads of the program, see shim/threads.cc
        "_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_",
        "_ZN5torch8autograd6Engine14queue_callbackESt8functionIFvvEE",
        "_ZN4c10d7Reducer20prepare_for_backwardERKSt6vectorIN2at6TensorESaIS3_EE",
        "_ZN2at6launchESt8functionIFvvEE",
        "_ZN5torch5utils15tensor_to_numpyERKN2at6TensorEb",
        "_Z15THPStorage_WrapN3c107StorageE",
        "_ZN2at8toDLPackERKNS_6TensorE",
        "_ZN2at17toDLPackVersionedERKNS_6TensorE",
        "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensor",
        "_ZN2at17toDLPackNonOwningERKNS_6TensorEP8DLTensorb",
        "_ZN2at25toDLPackVersionedReadOnlyERKNS_6TensorE",
        "_ZNK3c1010TensorImpl11has_storageEv",
        "_ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv",
        "_ZN2at6native16resize_bytes_cpuEPN3c1011StorageImplEm",
        "_ZN2at6native17resize_bytes_cudaEPN3c1011StorageImplEm",
        "_ZN5torch8autograd25get_current_graph_task_idEv",
    }
    functions = set(re.findall(r"\b(koila_[a-z_]+)\(", (ROOT / "include" / "koila" / "koila.h").read_text()))
    assert len(functions) > 10
    assert exported == hooks | functions


def test_the_adapter_names_no_folder_of_this_machine() -> None:
    dynamic = plain("readelf", "-d", "-W", str(BUILD / "lib" / "libkoila_torch.so")).stdout
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


def test_nothing_runs_before_or_after_a_program_without_torch(real: Preload) -> None:
    """No system call beyond the loader's: no file is opened, nothing is registered for the exit."""
    if subprocess.run(["which", "strace"], capture_output=True).returncode != 0:
        pytest.skip("no strace")
    traced = real.run("strace", "-f", "-e", "trace=openat,write,socket,clone,fork", "-o", "/dev/stdout", "true").stdout
    after = traced.split("libkoila.so", 1)[1]
    assert "KOILA" not in after and "/proc" not in after and "write(" not in after


def test_a_foreign_init_module_is_left_alone(real: Preload, tmp_path) -> None:
    """initModule is no name that only torch would think of; arguments and result must pass."""
    source = tmp_path / "foreign.c"
    source.write_text(
        "double initModule(int a, double b, long c) { return a + b + c; }\n"
        "double outer(void) { volatile double r = initModule(1, 2.5, 3); return r; }\n"
    )
    library = tmp_path / "libforeign.so"
    subprocess.run(["gcc", "-O0", "-shared", "-fPIC", "-o", library, source], check=True)
    code = f"import ctypes; f = ctypes.CDLL({str(library)!r}).outer; f.restype = ctypes.c_double; print(f())"
    done = real.python(code)
    assert (done.stdout, done.stderr, done.returncode) == ("6.5\n", "", 0)
    # Once torch's own is there too, each caller still gets what it means.
    assert real.python("import torch; " + code).stdout == "6.5\n"
    linked = tmp_path / "linked"
    main = tmp_path / "main.c"
    main.write_text('#include <stdio.h>\ndouble outer(void);\nint main(void) { printf("%g\\n", outer()); return 0; }\n')
    subprocess.run(["gcc", "-o", linked, main, library, f"-Wl,-rpath,{tmp_path}"], check=True)
    assert real.run(str(linked)).stdout == "6.5\n"
