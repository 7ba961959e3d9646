"""koila's events as scalars, for TensorBoard, Weights & Biases, or whatever takes a name, a number and a step.

    with follow(writer.add_scalar):                                                     # torch.utils.tensorboard.SummaryWriter
    with follow(lambda name, value, step: wandb.log({name: value}, step=step)):         # Weights & Biases

Each step's peak and micro-batch come after the step, on a thread of koila's own. Without koila nothing is logged.
"""

import contextlib

import koila

MIB = 2**20


def follow(log):
    """Within the `with` block `log(name, value, step)` is called for each step, rescue and refusal."""
    counts = {"rescue": 0, "refusal": 0}

    def on_event(event):
        if event.kind == "step":
            log("koila/peak_mib", event.peak_bytes / MIB, event.step)
            log("koila/live_mib", event.live_bytes / MIB, event.step)
            if event.micro_batch:
                log("koila/micro_batch", event.micro_batch, event.step)
        else:
            counts[event.kind] += 1
            log(f"koila/{event.kind}s", counts[event.kind], event.step)

    return koila.events(on_event) if koila.loaded() else contextlib.nullcontext()


if __name__ == "__main__":
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with follow(lambda name, value, step: print(f"{step:3} {name} {value:.1f}", flush=True)):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4096, 64)).square().mean().backward()
            optimizer.step()
