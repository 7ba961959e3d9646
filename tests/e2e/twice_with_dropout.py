"""A net without biases is homogeneous: its outputs are their slope times the inputs, and what the last weight gets from a loss of both is known as well. So whatever units dropout takes away,
the forward pass, the gradient and the gradient of the gradient have to have taken away the same. Prints the largest difference.
"""

import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(32, 256, bias=False), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 256, bias=False), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 1, bias=False))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
worst = 0
for _ in range(4):
    x = torch.randn(512, 32, requires_grad=True)
    u = model(x).squeeze(1)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    apart = u - (slope * x).sum(1)
    loss = slope.pow(2).sum(1).mean() + u.mean()
    optimizer.zero_grad()
    loss.backward()
    weight = model[-1].weight
    expected = 2 * slope.pow(2).sum(1).mean() + u.mean()
    worst = max(worst, apart.abs().max().item(), abs(((weight.grad * weight).sum() - expected).item()))
    optimizer.step()
print(worst)
