"""Prints what the build needs to know of this Python's torch, a line each: version, library folder, C++11 ABI, include folders, CUDA's version (empty: a
build without), include folders of NVIDIA's wheels beside it (empty: none)."""

import glob
import os
import sys

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    # pip runs an isolated build by the Python that it installs for, with PYTHONPATH set so that its packages are hidden.
    if "PYTHONPATH" in os.environ and not sys.flags.ignore_environment:
        os.execv(sys.executable, [sys.executable, "-E", *sys.argv])
    sys.exit(f"koila is built for the torch that it will run with, and {sys.executable} has none. Install torch there first. If that is a Python made "
             "for the build (python -m build, uv), name the right one with -Dtorch_python=PYTHON (pip: -Csetup-args=-Dtorch_python=PYTHON), or build "
             "without isolation. -Dglue=false leaves out what needs torch. See docs/install.md.")

root = os.path.dirname(torch.__file__)
include = os.path.join(root, "include")
wheels = glob.glob(os.path.join(os.path.dirname(root), "nvidia", "*", "include", "cuda_runtime_api.h"))
print(torch.__version__)
print(os.path.join(root, "lib"))
print(int(torch._C._GLIBCXX_USE_CXX11_ABI))
print(":".join([include, os.path.join(include, "torch", "csrc", "api", "include")]))
print(torch.version.cuda or "")
print(":".join(sorted(os.path.dirname(header) for header in wheels)))
