"""A reversible block: its backward makes its input again from its output, and runs it once more with a graph. Scores that are written to at the full batch lost that write where their
memory was let go of: what was made again by the row was as it had been before. Gradients were wrong by 30% from the second step on."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def attend(q, v):
    scores = torch.einsum("bie,bje->bij", q, F.normalize(q, dim=-1)) * 0.3
    own = torch.arange(scores.numel()).view_as(scores).diagonal(dim1=1, dim2=2)
    scores.put_(own, torch.full(own.shape, -5e4))
    scores = scores.softmax(dim=-1)
    return torch.einsum("bij,bje->bie", scores, v)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.v, self.out = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False), nn.Linear(16, 16)

    def forward(self, x):
        b, t, _ = x.shape
        q, v = (y.view(b, t, 2, 8).transpose(1, 2).reshape(2 * b, t, 8) for y in (self.q(x), self.v(x)))
        return self.out(attend(q, v).view(b, 2, t, 8).transpose(1, 2).reshape(b, t, 16))


class Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, f, g):
        x1, x2 = x.chunk(2, dim=2)
        with torch.no_grad():
            y1 = x1 + f(x2)
            y2 = x2 + g(y1)
        x = torch.cat((y1, y2), dim=2)
        ctx.f, ctx.g, ctx.y = f, g, x.detach()
        return x

    @staticmethod
    def backward(ctx, d):
        (y1, y2), (d1, d2) = ctx.y.chunk(2, dim=2), d.chunk(2, dim=2)
        with torch.enable_grad():
            y1.requires_grad = True
            of_y1 = ctx.g(y1)
            torch.autograd.backward(of_y1, d2)
        with torch.no_grad():
            x2 = y2 - of_y1
            d1 = d1 + y1.grad
            y1.grad = None
        with torch.enable_grad():
            x2.requires_grad = True
            of_x2 = ctx.f(x2)
            torch.autograd.backward(of_x2, d1, retain_graph=True)
        return torch.cat((d1, d2 + x2.grad), dim=2), None, None


def program(note):
    torch.manual_seed(83)
    torch.set_default_dtype(torch.float64)
    embed, head = nn.Embedding(20, 16), nn.Linear(16, 20)
    f, g = Attention(), nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    model = nn.ModuleList([embed, f, g, head])
    trained = note.trained([*model.parameters()])
    optimizer = torch.optim.SGD(trained, lr=0.05)
    for _ in note.steps(3):
        x = torch.randint(0, 20, (13, 17))
        h = embed(x)
        h1, h2 = Reversible.apply(torch.cat((h, h), dim=2), f, g).chunk(2, dim=2)
        loss = F.cross_entropy(head(h1 + h2).transpose(1, 2), x.roll(-1, 1))
        note.value("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note.state(model, trained, {})


if __name__ == "__main__":
    from notes import Printed

    program(Printed())
