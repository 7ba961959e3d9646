"""Prints what the build needs to know of this Python's torch, a line each: version, library folder, C++11 ABI, include folders."""

import os

import torch

root = os.path.dirname(torch.__file__)
include = os.path.join(root, "include")
print(torch.__version__)
print(os.path.join(root, "lib"))
print(int(torch._C._GLIBCXX_USE_CXX11_ABI))
print(":".join([include, os.path.join(include, "torch", "csrc", "api", "include")]))
