"""Compares what two runs of an example saved; the last word of scripts/demo."""

import sys

import torch


def worst(a, b):
    largest = max(t.abs().max().item() for t in a.values())
    return max((a[name] - b[name]).abs().max().item() for name in a) / largest


def main():
    plain, koila = (torch.load(path) for path in sys.argv[1:3])
    losses = max(abs(x - y) / abs(x) for x, y in zip(plain["losses"], koila["losses"]))
    print(f"  losses of all {len(plain['losses'])} steps   differ by at most {losses:.1e} of their value")
    for kind in ("gradients", "parameters"):
        print(f"  {kind + ' at the end':24} differ by at most {worst(plain[kind], koila[kind]):.1e} of the largest one")


if __name__ == "__main__":
    main()
