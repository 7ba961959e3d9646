"""Trains three steps; `import koila` comes at the place that is named. The last line tells losses and gradients."""

import contextlib
import json
import sys
import threading

WHEN, DEVICE = sys.argv[1], sys.argv[2]


def koila_comes(when):
    if when == WHEN:
        import koila

        told["loaded"] = koila.loaded()


told = {}
koila_comes("before")
import torch  # noqa: E402

koila_comes("after")
if DEVICE == "cuda":
    import sim_cuda
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def limit():
    """What is alive, and little more. No limit without koila."""
    if not told.get("loaded"):
        return
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(0.25)
    else:
        import koila

        koila.set_budget(koila.memory().live + 6 * 2**20)


def train():
    data = torch.randn(4096, 64)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    koila_comes("model")
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        if step == 1:
            koila_comes("graph")
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 0:
            koila_comes("step")
        if step == (1 if WHEN == "graph" else 0):
            limit()
    told.update(losses=losses, gradients=[parameter.grad.sum().item() for parameter in model.parameters()])


with sim_cuda.cuda_by_default() if DEVICE == "cuda" else contextlib.nullcontext():
    if WHEN == "thread":
        koila_comes("thread")
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    else:
        train()
if told.get("loaded"):
    import koila

    report = koila.report()
    told.update(rescues=report["rescues"], outcomes=[event["outcome"] for event in report["oom_events"]],
                alive=report["devices"]["cuda:0" if DEVICE == "cuda" else "cpu"]["live_bytes"] if report["steps"] else 0)
print(json.dumps(told))
