"""A hook runs passes of its own, over the step's graph and into its leaves. What these came by was taken for the outer pass's: gradients were missing, and hooks were not called any more."""

import torch
import torch.nn as nn


def program(note):
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    m0 = nn.Sequential(nn.Linear(11, 32), nn.Tanh(), nn.Linear(32, 11))
    m1 = nn.Sequential(nn.Linear(11, 40), nn.Tanh(), nn.Linear(40, 11))
    m2 = nn.Linear(11, 3)
    net = nn.ModuleList([m0, m1, m2])
    trained = note.trained([*net.parameters()])
    o0 = torch.optim.SGD(trained, lr=0.05)
    for step in note.steps(2):
        x0 = note.data(torch.randn(27, 11))
        penalty = m0(x0[:4]).square().mean()
        h0 = m0(x0)
        note.retain('retained', h0)
        h1 = h0.tanh()
        h1.register_hook(lambda gradient: gradient * 1.5)
        h2 = m1(h1)
        leaf = h2.detach().requires_grad_()
        held = {'side': (h1 * 2).mean(), 'again': m0(leaf) + h1}  # a hook that is never called keeps what it knows

        def accumulates(gradient):
            penalty.backward()
            held['side'].backward(retain_graph=True)
            return gradient

        def adjoint(gradient):
            through, *_ = torch.autograd.grad(held['again'], [leaf, *m0.parameters()], gradient, retain_graph=True)
            return gradient + through

        try:
            h2.register_hook(accumulates)
            h2.register_hook(adjoint)
            l0 = m2(h2).square().mean()
            o0.zero_grad()
            l0.backward()
            o0.step()
        finally:
            held.clear()
        note.state(net, trained, {})
