"""Allocates and frees tensors on the simulated device at random, and compares koila's figures with the caching allocator's own. One JSON line.

To be run under the preload, with tests/cuda/device and scripts/lib on PYTHONPATH.
"""

import json
import random
import sys

import torch

import sim_cuda  # noqa: F401
from koila_abi import Koila

koila = Koila(0)


def figures():
    device = koila.report()["devices"].get("cuda:0", {})
    stats = torch.cuda.memory_stats()
    return {"tensors": device.get("tensor_bytes", 0), "requested": stats.get("requested_bytes.all.current", 0),
            "live": device.get("live_bytes", 0), "reserved": stats.get("reserved_bytes.all.current", 0)}


def churn(rng, held, times):
    for _ in range(times):
        if held and rng.random() < 0.5:
            held.pop(rng.randrange(len(held)))
        else:
            held.append(torch.empty(int(10 ** rng.uniform(0, 6.8)), dtype=torch.uint8, device="cuda"))
        if rng.random() < 0.01:
            torch.cuda.empty_cache()


def run_out(held):
    """Until the device is full; then half of it is let go."""
    try:
        while True:
            held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        message = str(error)
    del held[len(held) // 2:]
    return message


def main():
    fraction = float(sys.argv[1]) if len(sys.argv) > 1 else 0
    if fraction:
        torch.cuda.set_per_process_memory_fraction(fraction)
    rng = random.Random(0)
    held = [torch.empty(1 << 20, device="cuda")]  # before anybody had a chance to look
    torch.zeros(3) + 1
    seen = []
    for _ in range(20):
        churn(rng, held, 150)
        seen.append(figures())
    message = run_out(held)
    seen.append(figures())
    churn(rng, held, 100)
    seen.append(figures())
    found = koila.report()
    print(json.dumps({"seen": seen, "message": message, "notes": found["notes"], "device": found["devices"].get("cuda:0", {}),
                      "sources": found["sources"]}))


main()
