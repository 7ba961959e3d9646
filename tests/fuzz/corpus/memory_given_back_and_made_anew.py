"""FSDP and offloading give the memory of a weight back between forward and backward, and fill it anew before backward reads it: `storage.resize_(0)`, `storage.resize_(n)`, `weight.data.copy_(...)`. No operator shows the first two, and where the new memory lay at the old address, a split step took what lay there before the copy, which is nothing, for what its forward pass had read."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_anew(tensor, content):
    storage = tensor.untyped_storage()
    bytes_of_it = storage.nbytes()
    storage.resize_(0)
    storage.resize_(bytes_of_it)
    tensor.data.copy_(content)


def program(note):
    torch.manual_seed(12)
    torch.set_default_dtype(torch.float64)
    first, norm, second, last = nn.Linear(5, 24), nn.BatchNorm1d(24), nn.Linear(24, 24), nn.Linear(24, 3)
    net = nn.ModuleList([first, norm, second, last])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.1)
    shift = torch.randn(24)
    for step in note.steps(5):
        x0 = note.data(torch.randn(40, 5))
        full = second.weight.detach().clone()
        if step in (1, 2):  # memory that no array of NumPy's looks at
            second.weight.data = full.clone()
        if step == 4:
            norm.running_mean = norm.running_mean.clone()
        h0 = torch.tanh(norm(first(x0)))
        h1 = torch.tanh(second(h0) + shift)
        l0 = F.cross_entropy(last(h1), torch.randint(3, (40,)))
        if step == 1:
            make_anew(second.weight, full)
        if step == 2:  # what backward reads of it is what it is by then
            make_anew(second.weight, full * 0.5)
        if step == 3:
            make_anew(shift, torch.randn(24))
        if step == 4:
            make_anew(h0, h0.detach() * 2)
            make_anew(norm.running_mean, torch.zeros(24))
        o0.zero_grad()
        l0.backward()
        note.value("loss", l0.item())
        o0.step()
        note.state(net, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
