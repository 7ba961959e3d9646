"""Trains, and between two steps captures a CUDA graph, by the runtime's own calls: the simulated device does its work at once all the same.

To be run with tests/cuda/device and scripts/lib on PYTHONPATH. Prints a line for each step; and, under koila, how many regions there have been by then.
"""

import ctypes
import os
import sys

import torch
import torch.nn.functional as F

import sim_cuda  # noqa: F401
from koila_abi import Koila

# As PyTorch's own libraries call it: by name, wherever the name leads.
cuda = ctypes.CDLL(None)


def regions():
    report = Koila(0).report()
    return report and report["regions_total"]["count"]


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5)).cuda()


def loss():
    return F.cross_entropy(model(torch.randn(14, 12).cuda()), torch.randint(5, (14,)).cuda())


def step(name):
    model.zero_grad()
    made = loss()
    made.backward()
    print(name, f"{made.item():.5f} {model[0].weight.grad.norm().item():.5f}", flush=True)
    return regions()


counts = [step("before"), step("before")]
held = loss()
assert cuda.cudaStreamBeginCapture(None, 0) == 0
counts.append(regions())
print("held", f"{held.item():.5f}")
counts.append(step("captured"))
graph = ctypes.c_void_p()
assert cuda.cudaStreamEndCapture(None, ctypes.byref(graph)) == 0
counts.append(step("after"))
print("regions", counts)
# PyTorch's own threads for a device may end after Python has, and then abort the process: plain runs did, on a busy machine.
sys.stdout.flush()
os._exit(0)
