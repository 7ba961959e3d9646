"""Small training programs as people write them, each under budgets between what it takes in any case and plain's peak: what came of each budget, as JSON.

    koila run --ladder 0,1 -- python tests/e2e/unseen.py NAME...
"""

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

from under_budgets import STEPS, Programs, main, train

PROGRAMS = program = Programs()
# Holes. With more, backward runs out instead, and q is divided in place by a sum over the batch; at 80% the teacher's second convolution runs out, and 32 pixels are taken for the batch.
program.shares = {"assigned_to_prototypes": (0.7, 0.6), "crops_of_two_sizes": (0.9, 0.7, 0.6), "labels_masked_before_the_model": (0.98, 0.95, 0.8, 0.6),
                  "mixed_between_layers": (0.93, 0.86, 0.8), "state_of_zeros": (0.7, 0.62), "weights_looked_at": (0.9, 0.7)}


def mlp():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


@program
def rows_tokens_and_features_alike(out):
    """A stage that ends within a conversion puts together what the program holds, and not what the conversion holds."""
    q, k, v = (nn.Linear(32, 32) for _ in range(3))

    def loss():
        x = torch.randn(32, 32, 32)
        a = (q(x) @ k(x).transpose(1, 2) / 32**0.5).softmax(-1) @ v(x)
        return (a - x).abs().mean() + a.mean(0).pow(2).sum() * 1e-3

    model = nn.ModuleList([q, k, v])
    train(torch.optim.RMSprop(model.parameters(), 1e-3), out, loss)
    return model


@program
def distilled_with_similarities(out):
    """A conversion with two stages; a value waits for operators that join before they run."""
    teacher, student = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 128)).eval(), nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128))

    def loss():
        x = torch.randn(300, 64)
        with torch.no_grad():
            t = teacher(x)
        s = student(x)
        apart = (1 - F.cosine_similarity(s, t)).mean() + F.kl_div((s / 2).log_softmax(1), (t / 2).softmax(1), reduction="batchmean")
        return apart + (F.normalize(s @ s.T) - F.normalize(t @ t.T)).pow(2).mean()

    train(torch.optim.AdamW(student.parameters(), 1e-3), out, loss)
    return student


@program
def written_into_empty(out):
    """Memory that is only written to is made by the row; copy_ is PyTorch's own."""
    w, b, u = nn.Parameter(torch.randn(64, 256) * 0.1), nn.Parameter(torch.zeros(256)), nn.Parameter(torch.randn(256, 64) * 0.1)

    def loss():
        x = torch.randn(300, 64)
        h = x @ w
        h += b
        h.clamp_(min=0)
        h[:, ::2] *= 0.5
        h[h > 2] = 2.0
        y = torch.empty(300, 64)
        y = y.copy_(h @ u)
        swapped = torch.zeros(300, 64)
        swapped[:, :32] = y[:, 32:]
        swapped[:, 32:].add_(y[:, :32])
        return (swapped - x).square().sum(1).sqrt().mean()

    train(torch.optim.SGD([w, b, u], 1e-2), out, loss)
    return nn.ParameterList([w, b, u])


@program
def two_noised_views(out):
    """What the noise was drawn into may be gone when backward runs out: it is drawn again."""
    net = mlp()

    def loss():
        x = torch.randn(512, 64)
        return (net(x + 0.1 * torch.randn_like(x)) - net(x + 0.1 * torch.randn_like(x))).pow(2).mean()

    train(torch.optim.SGD(net.parameters(), 0.1), out, loss)
    return net


@program
def assigned_to_prototypes(out):
    """SwAV: two noised views in one batch, and an assignment without gradients."""
    net, prototypes = mlp(), nn.Linear(64, 30, bias=False)

    def loss():
        x = torch.randn(128, 64)
        with torch.no_grad():
            prototypes.weight.copy_(F.normalize(prototypes.weight, dim=1))
        a, b = prototypes(F.normalize(net(torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])), dim=1)).chunk(2)
        with torch.no_grad():
            q = (a / 0.05).exp().t()
            q /= q.sum()
            for _ in range(3):
                q /= q.sum(1, keepdim=True) * 30
                q /= q.sum(0, keepdim=True) * 128
            q = (q * 128).t()
        return -(q * (b / 0.1).log_softmax(1)).sum(1).mean()

    train(torch.optim.SGD([*net.parameters(), *prototypes.parameters()], 0.1), out, loss)
    return nn.ModuleList([net, prototypes])


@program
def losses_added_up(out):
    """`loss += part` writes a differentiable value into a constant: by torch.tensor() and by torch.zeros()."""
    a, b = mlp(), mlp()

    def loss():
        x = torch.randn(400, 64)
        total, regular = torch.tensor(0.0), torch.zeros(1)
        total += (a(x) - x).pow(2).mean()
        total += (b(x) - x).abs().mean()
        regular += a(x).pow(2).mean()
        regular -= b(x).mean()
        return total + 1e-2 * regular.sum()

    model = nn.ModuleList([a, b])
    train(torch.optim.SGD(model.parameters(), 0.1), out, loss)
    return model


@program
def minibatches_by_indices(out):
    """PPO: each use of the array of indices makes a tensor of its own, in NumPy's memory, that lives as long as the call."""
    net, pi, v = nn.Sequential(nn.Linear(12, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()), nn.Linear(256, 4), nn.Linear(256, 1)
    seen, actions, before, advantages, returns = torch.randn(2048, 12), torch.randint(4, (2048,)), torch.randn(2048) - 1, torch.randn(2048), torch.randn(2048)
    order = numpy.arange(2048)

    def loss():
        numpy.random.RandomState(len(order)).shuffle(order)
        some = order[:1024]
        h = net(seen[some])
        d, values = torch.distributions.Categorical(logits=pi(h)), v(h).squeeze(-1)
        ratio = (d.log_prob(actions[some]) - before[some]).exp()
        a = advantages[some]
        a = (a - a.mean()) / (a.std() + 1e-8)
        kept = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2)).mean()
        clipped = returns[some] + (values - returns[some]).clamp(-0.2, 0.2)
        return kept - 0.01 * d.entropy().mean() + 0.5 * torch.max((values - returns[some]) ** 2, (clipped - returns[some]) ** 2).mean()

    model = nn.ModuleList([net, pi, v])
    train(torch.optim.SGD(model.parameters(), 1e-2), out, loss)
    return model


@program
def crops_of_two_sizes(out):
    """Two batches, of different sizes, through one network: the call that runs out belongs to the second, and most of the memory to the first."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.GELU(), nn.Conv2d(16, 32, 3, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 64))
    center = torch.zeros(64)

    def loss():
        large, small = [torch.randn(16, 3, 32, 32) for _ in range(2)], [torch.randn(16, 3, 16, 16) for _ in range(4)]
        with torch.no_grad():
            targets = net(torch.cat(large)).sub(center).div(0.04).softmax(-1).chunk(2)
        found = torch.cat([net(torch.cat(large)), net(torch.cat(small))]).chunk(6)
        return sum(-(t * f.div(0.1).log_softmax(-1)).sum(-1).mean() for i, t in enumerate(targets) for j, f in enumerate(found) if i != j)

    train(torch.optim.SGD(net.parameters(), 0.05), out, loss)
    return net


@program
def generator_behind_the_discriminator(out):
    """What the generator made is gone through again after the discriminator's own step: it requires grad, and is no parameter."""
    spectral = nn.utils.parametrizations.spectral_norm
    g = nn.Sequential(nn.ConvTranspose2d(16, 16, 4), nn.BatchNorm2d(16), nn.ReLU(True), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(True), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh())
    d = nn.Sequential(spectral(nn.Conv2d(1, 8, 4, 2, 1)), nn.LeakyReLU(0.2, True), spectral(nn.Conv2d(8, 16, 4, 2, 1)), nn.LeakyReLU(0.2, True), nn.Flatten(), spectral(nn.Linear(256, 1)))
    of_g, of_d, bce = torch.optim.SGD(g.parameters(), 0.05), torch.optim.SGD(d.parameters(), 0.05), nn.BCEWithLogitsLoss()
    one, zero = torch.ones(96, 1), torch.zeros(96, 1)
    for _ in range(STEPS):
        d.zero_grad()
        bce(d(torch.randn(96, 1, 16, 16)), one * 0.9).backward()
        made = g(torch.randn(96, 16, 1, 1))
        bce(d(made.detach()), zero).backward()
        of_d.step()
        g.zero_grad()
        loss = bce(d(made), one)
        loss.backward()
        of_g.step()
        out(loss)
    return nn.ModuleList([g, d])


@program
def masked_by_bernoulli(out):
    """Which tokens are masked is drawn from probabilities that differ by token: the mask is the plain run's, also where the step begins in micro-batches."""
    model = nn.ModuleList([nn.Embedding(60, 32), nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), nn.Linear(32, 60)])

    def loss():
        ids = torch.randint(1, 59, (24, 24))
        chance = torch.full(ids.shape, 0.15).masked_fill(ids % 7 == 0, 0.0)
        masked = torch.bernoulli(chance).bool()
        labels = ids.masked_fill(~masked, -100)
        return F.cross_entropy(model[2](model[1](model[0](ids.masked_fill(masked, 59)))).flatten(0, 1), labels.flatten())

    train(torch.optim.SGD(model.parameters(), 0.1), out, loss)
    return model


@program
def actions_sampled(out):
    """The actions are drawn from what the step computes, and the step's graph hangs on them: they are the plain run's."""
    body, policy, scale = nn.Sequential(nn.Linear(6, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh()), nn.Linear(96, 3), nn.Linear(96, 2)

    def loss():
        total, seen = 0.0, torch.randn(64, 6)
        for _ in range(6):
            h = body(seen)
            of = torch.distributions.Categorical(logits=policy(h))
            means = torch.distributions.Normal(scale(h), 0.5)
            action, move = of.sample(), means.sample()
            seen = seen * 0.9 + F.one_hot(action, 3).repeat(1, 2) * 0.3 + move.repeat(1, 3) * 0.1
            total = total - (of.log_prob(action) * seen[:, 0]).mean() - (means.log_prob(move).sum(-1) * seen[:, 1]).mean()
        return total / 6

    model = nn.ModuleList([body, policy, scale])
    train(torch.optim.SGD(model.parameters(), 0.05), out, loss)
    return model


@program
def taught_by_an_average(out):
    """128 rows of 20 features beside a weight of [128, 20]: under no_grad the teacher takes in a batch, though a parameter has its sizes."""

    def classifier():
        middle = [layer for _ in range(6) for layer in (nn.GELU(), nn.LayerNorm(128))]
        return nn.Sequential(nn.Linear(20, 128), *middle, nn.Linear(128, 5))

    student, teacher = classifier(), classifier()
    teacher.load_state_dict(student.state_dict())

    def loss():
        x = torch.randn(128, 20)
        with torch.no_grad():
            for average, p in zip(teacher.parameters(), student.parameters()):
                average.mul_(0.9).add_(p, alpha=0.1)
            taught = teacher(x + 0.1 * torch.randn_like(x)).softmax(1)
        return (student(x).softmax(1) - taught).pow(2).mean()

    train(torch.optim.SGD(student.parameters(), 1e-2), out, loss)
    return nn.ModuleList([student, teacher])


@program
def labels_masked_before_the_model(out):
    """Tokens and labels are written to in place before the model reads them: what it reads is what they are by then."""
    model = nn.Sequential(nn.Embedding(60, 32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 60, bias=False))

    def loss():
        tokens = torch.randint(1, 60, (48, 28))
        tokens[:, -3:][torch.rand(48, 3) < 0.5] = 0
        labels = tokens[:, 1:].clone()
        labels[labels == 0] = -100
        return F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), labels, ignore_index=-100)

    train(torch.optim.SGD(model.parameters(), 0.1), out, loss)
    return model


@program
def flow_with_a_log_determinant(out):
    """What scales the data is added to sums over rows that are read twice."""
    scale, shift = nn.Parameter(torch.rand(1, 12, 1) + 1), nn.Parameter(torch.rand(1, 12, 1))

    def loss():
        data = torch.rand(400, 12, 64)
        x = scale * (data + shift)
        rows = torch.sigmoid(x[:, :6])
        determinant = torch.log(scale).sum() + rows.sum((1, 2))
        return (determinant + rows.sum((1, 2))).mean()

    model = nn.ParameterList([scale, shift])
    train(torch.optim.SGD(model.parameters(), 1e-3), out, loss)
    return model


@program
def gradient_above_what_runs_whole(out):
    """autograd.grad stops at a sum along the batch, which hangs on one region and feeds another."""
    first, net = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 128), nn.Softplus(), nn.Linear(128, 2, bias=False))

    def loss():
        y = first(torch.randn(500, 2)).cumsum(0)
        z = net(y)
        (slope,) = torch.autograd.grad(z[:, 0].sum(), y, create_graph=True)
        return z.pow(2).mean() + slope[:, 0].pow(2).mean()

    model = nn.ModuleList([first, net])
    train(torch.optim.SGD(model.parameters(), 1e-5), out, loss)
    return model


@program
def two_views_correlated(out):
    """Barlow Twins as it was published: the diagonal of a sum over the batch is written to in place."""
    net = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 64, bias=False))
    scaled = nn.BatchNorm1d(64, affine=False)

    def loss():
        a = torch.randn(64, 3, 24, 24)
        z, w = net(a), net(a + 0.1 * torch.randn(64, 3, 24, 24))
        c = scaled(z).T @ scaled(w)
        c.div_(64)
        on = torch.diagonal(c).add_(-1).pow_(2).sum()
        return on + 0.005 * c.flatten()[:-1].view(63, 65)[:, 1:].flatten().pow_(2).sum()

    train(torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), out, loss)
    return nn.ModuleList([net, scaled])


@program
def mixed_between_layers(out):
    """Manifold mixup: an operator at work reads a boundary at its full size, and what is let go is another one."""
    first, second, last = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 24, 3, 2, 1), nn.Linear(24, 5)

    def loss():
        x, y, other = torch.randn(36, 3, 16, 16), torch.randint(0, 5, (36,)), torch.randperm(36)
        h = first(x).relu()
        h = 0.3 * h + 0.7 * h[other]
        return nn.functional.cross_entropy(last(second(h).relu().mean((2, 3))), y)

    model = nn.ModuleList([first, second, last])
    train(torch.optim.SGD(model.parameters(), 0.05), out, loss)
    return model


@program
def state_of_zeros(out):
    """An LSTM is given its first state: its gates are parts of a sum that is written to in place, which no gradient reads."""
    eyes = nn.Sequential(nn.Conv2d(2, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
    middle, memory = nn.Linear(256, 64), nn.LSTM(64, 64)

    def loss():
        state = torch.zeros(1, 10, 64), torch.zeros(1, 10, 64)
        seen = torch.randn(9, 10, 2, 16, 16)
        return memory(middle(eyes(seen.flatten(0, 1)).view(90, -1)).view(9, 10, -1), state)[0].pow(2).sum()

    model = nn.ModuleList([eyes, middle, memory])
    train(torch.optim.SGD(model.parameters(), 0.01), out, loss)
    return model


@program
def weights_looked_at(out):
    """Weights are looked at through NumPy while a graph stays, and a fused optimizer, which counts no version up, writes to them."""
    net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.8, fused=True)
    for _ in range(STEPS):
        loss = net(torch.randn(256, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        out(loss + float(abs(net[0].weight.detach().numpy()).max()))
        optimizer.step()
    return net


if __name__ == "__main__":
    main(PROGRAMS)
