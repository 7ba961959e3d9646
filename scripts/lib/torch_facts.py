"""Prints what the build needs to know of a torch, a line each: version, library folder, C++11 ABI, include folders, CUDA's version (empty: a build without), include
folders of NVIDIA's wheels beside it (empty: none).

    torch_facts.py            the torch of this Python
    torch_facts.py FOLDER     the torch package in that folder, which is read and not imported: it may be another Python's, or lack what it needs to run
"""

import glob
import os
import re
import sys

# A function that each release has and that takes a std::string: the name says which of the two kinds.
NEW_STRING = b"_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_string"
OLD_STRING = b"_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def facts_of_this_python():
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
    return os.path.dirname(torch.__file__), torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI), torch.version.cuda or ""


def facts_of_folder(root):
    try:
        text, c10 = read(root, "version.py").decode(), read(root, "lib", "libc10.so")
    except FileNotFoundError as error:
        sys.exit(f"{root} is no torch package: {error.filename} is missing (-Dtorch_path= names the folder torch of site-packages)")
    value = {name: re.search(rf"^{name}\b[^=\n]*= *['\"]([^'\"]*)['\"]", text, re.M) for name in ("__version__", "cuda")}
    if not value["__version__"]:
        sys.exit(f"{root}/version.py does not say which torch it is")
    if (NEW_STRING in c10) == (OLD_STRING in c10):
        sys.exit(f"{root}/lib/libc10.so does not tell which std::string it was built with")
    return root, value["__version__"][1], int(NEW_STRING in c10), value["cuda"][1] if value["cuda"] else ""


root, version, abi, cuda = facts_of_folder(os.path.abspath(sys.argv[1])) if len(sys.argv) > 1 else facts_of_this_python()
include = os.path.join(root, "include")
wheels = glob.glob(os.path.join(os.path.dirname(root), "nvidia", "*", "include", "cuda_runtime_api.h"))
print(version)
print(os.path.join(root, "lib"))
print(abi)
print(":".join([include, os.path.join(include, "torch", "csrc", "api", "include")]))
print(cuda)
print(":".join(sorted(os.path.dirname(header) for header in wheels)))
