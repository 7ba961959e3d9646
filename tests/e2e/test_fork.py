"""A process that forks on one thread while another trains: the child is not to wait for what only the other thread would give back."""

import subprocess
import sys
import textwrap

from harness import clean_environment, koila_environment

PROGRAM = textwrap.dedent("""
    import os, signal, sys, threading, time
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    net = nn.Sequential(*[layer for width in (1, 24, 24) for layer in (nn.Conv2d(width, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())])
    batches = [torch.randn(rows, 1, 20, 20) for rows in (48, 40, 36, 44)]
    forks, hung, over = 0, 0, threading.Event()

    def in_child():
        signal.alarm(20)
        assert torch.ones(10).numpy().sum() == 10  # asks whether the tensor's memory may be moved
        kept = []
        for size in (1 << 18, 1 << 14, 1 << 10):
            try:
                while True:
                    kept.append(torch.empty(size))
            except torch.OutOfMemoryError:
                pass
        kept += [torch.ones(100) for _ in range(20)]  # so few bytes are served from outside
        del kept
        os._exit(0)

    def fork_all_the_time():
        global forks, hung
        torch.ones(10)  # PyTorch takes a lock for a thread's first operator, and the other thread may hold that at the fork
        while not over.is_set():
            child = os.fork()
            if child == 0:
                in_child()
            forks += 1
            if os.waitpid(child, 0)[1] != 0:
                hung += 1
                return

    other = threading.Thread(target=fork_all_the_time)
    end = time.monotonic() + float(sys.argv[1])
    other.start()
    while time.monotonic() < end and other.is_alive():
        net.zero_grad()
        for batch in batches:
            net(batch).square().mean().backward()
    over.set()
    other.join()
    print(forks, hung)
    os._exit(0)
""")


def test_fork_beside_a_rescued_step():
    """Batches of other sizes let go of files all the time, under a lock that the child asks for."""
    program = subprocess.run([sys.executable, "-c", PROGRAM, "12"], capture_output=True, text=True, timeout=120,
                             env=clean_environment(koila_environment("rescue", KOILA_CPU_MEMORY="10MiB", KOILA_LOG="off")))
    assert program.returncode == 0, program.stderr
    forks, hung = map(int, program.stdout.split()[-2:])
    assert forks >= 3 and hung == 0, program.stdout + program.stderr
