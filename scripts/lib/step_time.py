"""Times one training step many times: `step_time.py NAME STEPS` writes JSON `[seconds, faults]`, the lower quartile of the steps and their page faults
per step. One process for each measurement, since where a process's memory happens to lie is worth some percent of so small a step."""

import json
import resource
import statistics
import sys
import time

import torch

from bench_worker import step

WARM = 50


def main():
    name, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    run = step(name)
    for _ in range(WARM):
        run()
    taken = []
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    print(json.dumps([statistics.quantiles(taken, n=4)[0], faults / steps]))


if __name__ == "__main__":
    main()
