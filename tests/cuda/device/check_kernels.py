"""Trains the tasks of tests/e2e on the CPU and on the simulated device, with the same draws, and compares all that the two leave behind.

    python tests/cuda/device/check_kernels.py            # a dozen styles
    python tests/cuda/device/check_kernels.py --all      # every family
    python tests/cuda/device/check_kernels.py gpt resnet --optimizer sgd

What counts as equal is harness.py's measure. Both run the same CPU kernels, but not always the same composition of them (attention in
one kernel or in several, the cells of recurrent networks), which rounds differently.
"""

import argparse
import contextlib
import os
import pickle
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ["SIM_CUDA_GENERATOR"] = "cpu"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "e2e")]

import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401  (before the forks: it takes a second)

import sim_cuda  # noqa: E402
import harness  # noqa: E402
import task  # noqa: E402

STYLES = [
    "mlp", "cnn", "cnn_channels_last", "res_net", "unet", "variational_autoencoder", "gpt", "vit", "bert_batch_first", "multihead_attention",
    "lstm_batch_first", "gru_time_major", "cell_loop", "embedding_bag", "batch_norm", "autocast", "perceiver", "gan_with_batch_norm"]
TOLERANCE = 1e-6
NOT_ON_A_DEVICE = {
    "packed_sequence": "lengths have to be on the CPU", "read_numpy": "NumPy reads the CPU's memory only",
    "read_dlpack": "so does numpy.from_dlpack", "read_metadata": "asserts that its outputs are on the CPU"}

copied_of_cpu = task.copied
task.copied = lambda value: copied_of_cpu(value.detach().cpu() if isinstance(value, torch.Tensor) else value)


def train(family, optimizer_name, steps, device):
    """What the run leaves behind, by name. Whatever the task makes without naming a device is made on `device`."""
    torch.manual_seed(0)
    # One kernel for attention is what the CPU has, and the simulated device has not.
    torch.backends.cuda.enable_flash_sdp(False)
    # Tasks that name the CPU in autocast mean the device they run on.
    autocast = torch.autocast
    torch.autocast = lambda _, **rest: autocast(device, **rest)
    record = task.Record()
    with sim_cuda.cuda_by_default() if device == "cuda" else contextlib.nullcontext():
        made = harness.families()[family]()
        model = made.model()
        optimizer = made.optimizer(model, optimizer_name)
        for step in range(1, steps + 1):
            record.at_step = step
            made.step(model, optimizer, made.data(made.rows), record)
        made.finish(model, record)
        devices = {p.device.type for p in model.parameters()}
        assert devices == {device}, f"parameters on {devices}"
        record.state(model, optimizer)
    return record.arrays


def in_child(function, *arguments):
    """(what it returned, None) or (None, why not), from a process of its own."""
    with tempfile.NamedTemporaryFile() as file:
        pid = os.fork()
        if pid == 0:
            try:
                answer = function(*arguments), None
            except BaseException:
                answer = None, traceback.format_exc()
            with open(file.name, "wb") as out:
                pickle.dump(answer, out)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        return pickle.load(file) if status == 0 else (None, f"the process ended with {status}")


def check(family, optimizer, steps, tolerance, verbose):
    """Whether the family trains alike; prints a line."""
    expected, failure = in_child(train, family, optimizer, steps, "cpu")
    if failure:
        print(f"{family:40} cannot be compared, the CPU fails: {failure.strip().splitlines()[-1]}")
        return True
    began = time.perf_counter()
    actual, failure = in_child(train, family, optimizer, steps, "cuda")
    seconds = time.perf_counter() - began
    if failure:
        print(f"{family:40} FAILED {failure.strip().splitlines()[-1][:160]}")
        if verbose:
            print(failure)
        return False
    # A task's own tolerance is above the common one where it rounds to less than a float's precision.
    own = harness.families()[family].tolerance
    found = harness.differences(expected, actual, own if own > 1e-5 else tolerance)
    worst = "equal to the bit" if not harness.differences(expected, actual, 0) else "equal within the tolerance"
    print(f"{family:40} {f'DIFFERS {found[0][1]}: {found[0][2]}' if found else worst} ({seconds:.2f} s)")
    return not found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--optimizer", default="adamw", choices=["sgd", "adamw"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    known = harness.families(*harness.OF_TORCH)
    chosen = args.family or (list(known) if args.all else STYLES)
    for name in [name for name in chosen if name in NOT_ON_A_DEVICE]:
        print(f"{name:40} left out: {NOT_ON_A_DEVICE[name]}")
        chosen.remove(name)
    bad = [name for name in chosen if not check(name, args.optimizer, args.steps, args.tolerance, args.verbose)]
    print(f"{len(chosen)} families, {len(bad)} not alike {' '.join(bad)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
