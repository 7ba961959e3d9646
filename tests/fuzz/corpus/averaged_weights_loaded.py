"""A target network that follows by averaged weights, put together in a state dict and loaded, as the tutorials of deep Q-learning do. The averages were put off as if the weights' rows were a
batch, and ran out where load_state_dict() reads them, which makes an error of its own of it: a RuntimeError."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def network():
    return nn.Sequential(nn.Linear(6, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))


def averaged(ours, theirs, turn):
    if turn == 0:
        return {name: 0.1 * ours[name] + 0.9 * theirs[name] if theirs[name].is_floating_point() else ours[name] for name in theirs}
    if turn == 1:
        return {name: torch.stack([ours[name].double(), theirs[name].double()], 0).mean(0) for name in theirs}
    return {name: theirs[name] + (ours[name] - theirs[name]) * 0.5 if theirs[name].is_floating_point() else ours[name] for name in theirs}


def program(note):
    torch.manual_seed(97)
    torch.set_default_dtype(torch.float64)
    model, target = network(), network()
    target.load_state_dict(model.state_dict())
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.AdamW(trained, lr=1e-3, amsgrad=True)
    for i in note.steps(3):
        state, action, reward = torch.randn(61, 6), torch.randint(0, 3, (61, 1)), torch.randn(61)
        with torch.no_grad():
            expected = target(torch.randn(61, 6)).max(1).values * 0.99 + reward
        loss = F.smooth_l1_loss(model(state).gather(1, action), expected[:, None])
        note.value("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        target.load_state_dict(averaged(model.state_dict(), target.state_dict(), i % 3))
        note.state(model, trained, {})
        for name, value in target.state_dict().items():
            note.value(name, value.sum().item())


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
