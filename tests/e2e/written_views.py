"""Operators that run at the full batch write in place to views of a split step, to their bases, and to what has views: what each case computed, see cases.py."""

import torch

import cases

CASES = {}


def case(loss):
    """`loss` of what a small model gives, twice, with all gradients."""

    def steps():
        model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6))
        said = []
        for _ in range(2):
            model.zero_grad()
            value = loss(model(torch.randn(12, 5)))
            if value.requires_grad:
                value.backward()
            said += [value, *[p.grad for p in model.parameters() if p.grad is not None]]
        return [v.clone() for v in said]

    CASES[loss.__name__] = steps


def read(*tensors):
    return sum((t ** (2 + i)).sum() for i, t in enumerate(tensors))


@case
def view_of_a_living_base(h):
    v = h[:, :3]
    v.cumsum_(0)
    return read(h, v)


@case
def base_of_a_living_view(h):
    v = h[:, :3]
    h.cumsum_(0)
    return read(h, v)


@case
def views_whose_base_is_gone(h):
    def views():
        whole = h * 3
        return whole[:, :4], whole[:, 2:]

    v, w = views()
    v.cumsum_(0)
    return read(v, w)


@case
def view_of_a_view(h):
    v = h[:, :3]
    w = v[:, 1:]
    w.cumsum_(0)
    return read(h, v, w)


@case
def transposed(h):
    v = h.t()
    v.cumsum_(1)
    return read(h, v)


@case
def first_the_view_then_the_base(h):
    v = h[:, :3]
    v.cumsum_(0)
    h.cumsum_(0)
    return read(h, v)


@case
def read_before_by_a_sum(h):
    v = h[:, :3]
    before = v.sum() * 2
    v.cumsum_(0)
    return before + read(h, v)


@case
def read_before_whole(h):
    v = h[:, :3]
    before = v.cumsum(0)
    v.cumsum_(0)
    return before.sum() + read(h, v)


@case
def one_of_several_views(h):
    h.split(3, 1)[0].cumsum_(0)
    return read(h)


@case
def detached(h):
    h.detach()[:, :3].cumsum_(0)
    return h.sum()


@case
def without_gradients(h):
    v = h[:, :3]
    with torch.no_grad():
        v.cumsum_(0)
    return h.sum() + v.sum()


@case
def diagonal_of_a_sum(h):
    c = h.t() @ h
    d = c.diagonal()
    d.sub_(1).pow_(2)
    return read(c, d)


@case
def sum_with_a_view(h):
    c = h.t() @ h
    d = c.diagonal()
    c.pow_(2)
    return read(c, d)


@case
def diagonal_in_three_writes(h):
    c = h.t() @ h
    c.div_(12)
    c.diagonal().add_(-1).mul_(2).pow_(2)
    return read(c)


@case
def parts_of_parts(h):
    c = (h.t() @ h)[1:]
    d = c[:, 2:]
    d.pow_(2)
    return read(c, d)


@case
def row_of_a_sum(h):
    c = h.t() @ h
    c[0] = 1.0
    c[1:3, 2] += 1.0
    return read(c)


@case
def entry_of_a_mean(h):
    m = h.mean(0)
    m[1] += 1.0
    return read(h - m, m)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    cases.main(CASES)
