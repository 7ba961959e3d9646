"""A rank of the fuzzer's programs for two: python ranks_worker.py RANK. For each request a child is forked, in which both ranks meet at a file and run one program in all its settings.

A request is (program, settings, the file); the answer a list of (outcome, message, values, peak, by how much it went over its budget), one for each setting until one does not end well, and how the child ended.
Where one rank ends, gloo tells the other.
"""

import datetime
import os
import pickle
import signal
import sys
import time
import warnings

import fuzz_worker
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives
import torch.distributed.nn.functional
from generate import outcome
from koila_abi import CPU, Koila
from notes import Notes
from verdict import Setting

PATIENCE = 60  # seconds for one child


class Case:
    def __init__(self, program):
        self.program, self.function = program, program.compiled()


def run(rank, program, settings, file, answers):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=PATIENCE / 2))
    runner = fuzz_worker.Runner(CPU) if Koila().library else None
    case, peak = Case(program), 0
    for setting in settings:
        if runner is None:
            notes = Notes()
            ended, over = outcome(case.function, notes), 0
        else:
            setting = Setting(**vars(setting))
            setting.bytes = int(setting.budget * peak)
            done = runner.run(case, setting)
            notes, ended, over = done.notes, done.ended, done.over
            peak = max(peak, done.peak) if not setting.budget else peak
        kind = "ok" if ended == "ok" else "oom" if ran_out(ended) else "error"
        pickle.dump((kind, "" if ended == "ok" else f"{type(ended).__name__}: {ended}"[:400], notes.values, peak, over), answers)
        answers.flush()
        if kind != "ok":
            break
        del ended, notes
        dist.barrier()


def ran_out(error):
    """Of what a communication hook calls when it is done PyTorch hands on the text alone."""
    return isinstance(error, torch.OutOfMemoryError) or "when running the callback: OutOfMemoryError" in str(error)


def in_a_child(rank, program, settings, file):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            with os.fdopen(writer, "wb") as answers:
                run(rank, program, settings, file, answers)
            status = 0
        except BaseException as error:  # noqa: BLE001
            print(f"{type(error).__name__}: {error}"[:600], file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    os.close(writer)
    return collected(child, reader)


def collected(child, reader):
    """All that the child told, and how it ended."""
    import select
    data, until, ended = b"", time.monotonic() + PATIENCE, None
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while True:
            if not select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]:
                os.kill(child, signal.SIGKILL)
                ended = "hang"
                break
            part = stream.read(1 << 20)
            if not part:
                break
            data += part
    _, status = os.waitpid(child, 0)
    if ended is None:
        ended = f"crash: signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended"
    return list(unpickled(data)), ended


def unpickled(data):
    import io
    stream = io.BytesIO(data)
    while True:
        try:
            yield pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            return


def main():
    rank = int(sys.argv[1])
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fuzz_worker.seed_at_once()
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0).zero_grad()
    while (request := fuzz_worker.read(requests)) is not None:
        fuzz_worker.write(answers, in_a_child(rank, *request))


if __name__ == "__main__":
    main()
