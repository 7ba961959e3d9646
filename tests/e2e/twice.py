"""Programs that differentiate gradients (create_graph=True), each under budgets between what it takes in any case and plain's peak: what came of each budget, as JSON.

    koila run --ladder 0,1 -- python tests/e2e/twice.py NAME...
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from under_budgets import STEPS, Programs, main, train

PROGRAMS = program = Programs()
grad = torch.autograd.grad
SHARES = (0.9, 0.7, 0.5, 0.35)


def net(*sizes, activation=nn.Tanh):
    layers = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


def adam(model):
    return torch.optim.Adam(model.parameters(), 1e-3)


@program
def burgers(out):
    """A physics-informed network: second derivatives by the inputs, and a boundary of another number of rows."""
    model = net(2, 64, 64, 64, 1)

    def loss():
        x, t = (torch.rand(1024, 1, requires_grad=True) for _ in range(2))
        u = model(torch.cat([x, t], 1))
        (u_t,) = grad(u, t, torch.ones_like(u), create_graph=True)
        (u_x,) = grad(u, x, torch.ones_like(u), create_graph=True)
        (u_xx,) = grad(u_x, x, torch.ones_like(u_x), create_graph=True)
        x0 = torch.rand(128, 1)
        start = model(torch.cat([x0, torch.zeros_like(x0)], 1)) + torch.sin(torch.pi * x0)
        return (u_t + u * u_x - 0.01 * u_xx).pow(2).mean() + start.pow(2).mean()

    train(adam(model), out, loss)
    return model


@program
def laplacian(out):
    model = net(3, 64, 64, 1, activation=nn.SiLU)

    def loss():
        x = torch.randn(512, 3, requires_grad=True)
        (slope,) = grad(model(x).sum(), x, create_graph=True)
        bend = sum(grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(3))
        return (bend - torch.sin(x).sum(1)).pow(2).mean()

    train(adam(model), out, loss)
    return model


@program
def wgan_gp(out):
    generator, critic = net(16, 64, 32, activation=nn.ReLU), net(32, 128, 128, 1, activation=nn.LeakyReLU)
    for_generator, for_critic = adam(generator), adam(critic)
    for _ in range(STEPS):
        real, fake = torch.randn(512, 32), generator(torch.randn(512, 16)).detach()
        share = torch.rand(512, 1)
        between = (share * real + (1 - share) * fake).requires_grad_(True)
        scores = critic(between)
        (slope,) = grad(scores, between, torch.ones_like(scores), create_graph=True, retain_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(2, dim=1) - 1).pow(2).mean()
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()
        of_generator = -critic(generator(torch.randn(512, 16))).mean()
        for_generator.zero_grad()
        of_generator.backward()
        for_generator.step()
        out(loss, of_generator)
    return nn.ModuleList([generator, critic])


@program
def convolutional_r1(out):
    """The data's own gradient is kept in real.grad, as in plain PyTorch."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32 * 16, 1))

    def loss():
        real, fake = torch.randn(64, 3, 16, 16, requires_grad=True), torch.randn(64, 3, 16, 16)
        scores = model(real)
        (slope,) = grad(scores.sum(), real, create_graph=True)
        penalty = slope.pow(2).reshape(len(slope), -1).sum(1).mean()
        return F.softplus(model(fake)).mean() + F.softplus(-scores).mean() + 5 * penalty

    train(adam(model), out, loss)
    return model


@program
def meta_learning(out):
    """MAML: two inner steps for each of two tasks are differentiated through."""
    model = net(8, 64, 64, 4)

    def apply(x, weights):
        for w, b in zip(weights[0:-2:2], weights[1:-2:2]):
            x = torch.tanh(F.linear(x, w, b))
        return F.linear(x, *weights[-2:])

    def loss():
        total = 0
        for _ in range(2):
            x, y = torch.randn(2, 256, 8), torch.randint(0, 4, (2, 256))
            weights = list(model.parameters())
            for _ in range(2):
                slopes = grad(F.cross_entropy(apply(x[0], weights), y[0]), weights, create_graph=True)
                weights = [w - 0.1 * s for w, s in zip(weights, slopes)]
            total = total + F.cross_entropy(apply(x[1], weights), y[1])
        return total

    train(adam(model), out, loss)
    return model


@program
def curvature(out):
    """A Hessian-vector product takes the gradient's place."""
    model = net(8, 64, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        parameters = list(model.parameters())
        loss = F.cross_entropy(model(torch.randn(1024, 8)), torch.randint(0, 4, (1024,)))
        slopes = grad(loss, parameters, create_graph=True)
        for p, product in zip(parameters, grad(sum((s * torch.randn_like(s)).sum() for s in slopes), parameters)):
            p.grad = product
        optimizer.step()
        out(loss)
    return model


@program
def contractive(out):
    """Features that are weighted by a small vector of noise, which nobody holds by the time that backward runs out."""
    encoder, decoder = net(64, 128, 16, activation=nn.Sigmoid), nn.Linear(16, 64)
    model = nn.ModuleList([encoder, decoder])

    def loss():
        x = torch.randn(512, 64, requires_grad=True)
        h = encoder(x)
        (slope,) = grad((h * torch.randn(16)).sum(), x, create_graph=True)
        return F.mse_loss(decoder(h), x.detach()) + 0.1 * slope.pow(2).sum(1).mean()

    train(adam(model), out, loss)
    return model


@program
def energy_and_forces(out):
    """Forces are looked at before backward."""
    model = net(3, 64, 64, 1, activation=nn.SiLU)

    def loss():
        positions = torch.randn(96, 12, 3, requires_grad=True)
        r = ((positions[:, :, None] - positions[:, None]).pow(2).sum(-1) + 1e-3).sqrt()
        energy = model(torch.stack([r.sum(2), r.exp().reciprocal().sum(2), r.pow(2).sum(2)], -1)).sum(1)
        forces = -grad(energy.sum(), positions, create_graph=True)[0]
        out(torch.tensor(forces.detach().numpy().max()))  # NumPy asks under Python's lock, under which the engine does not run
        return F.mse_loss(energy, torch.randn(96, 1)) + F.mse_loss(forces, torch.randn(96, 12, 3))

    train(adam(model), out, loss)
    return model


@program
def path_lengths(out):
    """StyleGAN2's: the gradient of hidden values."""
    mapping, synthesis = net(16, 64, 32, activation=nn.LeakyReLU), net(32, 64, 192, activation=nn.SiLU)
    model = nn.ModuleList([mapping, synthesis])

    def loss():
        w = mapping(torch.randn(512, 16))
        image = synthesis(w)
        (slope,) = grad((image * (torch.randn(512, 192) / 14)).sum(), w, create_graph=True)
        lengths = (slope.pow(2).sum(1) + 1e-8).sqrt()
        return F.softplus(-image.mean(1)).mean() + 2 * (lengths - lengths.mean().detach()).pow(2).mean()

    train(adam(model), out, loss)
    return model


@program
def attention_map(out):
    """Grad-CAM's: the gradient of hidden values, without a graph, weights them in the loss."""
    below, above = net(16, 64, 32, activation=nn.ReLU), net(32, 64, 4, activation=nn.ReLU)
    model = nn.ModuleList([below, above])

    def loss():
        h = below(torch.randn(512, 16))
        loss = F.cross_entropy(above(h), torch.randint(0, 4, (512,)))
        (slope,) = grad(loss, h, retain_graph=True)
        return loss + 0.1 * (h * slope).sum()

    train(adam(model), out, loss)
    return model


@program
def jacobians(out):
    model = net(4, 64, 64, 3)

    def loss():
        x = torch.randn(512, 4, requires_grad=True)
        y = model(x)
        jacobian = torch.stack([grad(y[:, i].sum(), x, create_graph=True)[0] for i in range(3)], 1)
        return (jacobian @ jacobian.transpose(1, 2) - torch.eye(3)).pow(2).mean() + y.pow(2).mean()

    train(adam(model), out, loss)
    return model


@program
def adversary_differentiated(out):
    model = net(16, 64, 64, 4, activation=nn.ReLU)

    def loss():
        x, y = torch.randn(512, 16, requires_grad=True), torch.randint(0, 4, (512,))
        clean = F.cross_entropy(model(x), y)
        (slope,) = grad(clean, x, create_graph=True)
        return clean + F.cross_entropy(model(x + 0.1 * slope / slope.norm(dim=1, keepdim=True)), y)

    train(torch.optim.SGD(model.parameters(), 1e-2), out, loss)
    return model


@program
def attention_of_one_kind(out):
    """Of the kernels for attention only the plain one can be differentiated twice, and the program says which there is to be while it calls the layer."""
    layer, head = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), nn.Linear(32, 1)
    model = nn.ModuleList([layer, head])

    def loss():
        x = torch.randn(48, 12, 32, requires_grad=True)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            scores = head(layer(x)).mean((1, 2))
        (slope,) = grad(scores.sum(), x, create_graph=True)
        return F.softplus(-scores).mean() + slope.pow(2).sum((1, 2)).mean()

    train(torch.optim.SGD(model.parameters(), 1e-2), out, loss)
    return model



@program
def losses_weighed_by_gradients(out):
    """The weight of one loss is a ratio of gradients, of a graph that is kept for the pass over both (VQGAN)."""
    encoder, decoder, critic = net(32, 64, 64), net(64, 64, 32), net(32, 64, 1)
    optimizer = adam(nn.ModuleList([encoder, decoder]))
    for _ in range(STEPS):
        x = torch.randn(600, 32)
        made = decoder(encoder(x))
        seen, real = (x - made).abs().mean(), -critic(made).mean()
        last = decoder[-1].weight
        of_seen, of_real = (grad(one, last, retain_graph=True)[0].norm() for one in (seen, real))
        weight = (of_seen / (of_real + 1e-4)).clamp(0, 1e4).detach()
        optimizer.zero_grad()
        loss = seen + weight * real
        loss.backward()
        out(loss, weight)
        optimizer.step()
    return nn.ModuleList([encoder, decoder, critic])


@program
def gradients_of_each_task(out):
    """A pass for each of three losses, each of the same graph, and then one for their sum."""
    body, heads = net(32, 128, 128, 64), nn.ModuleList(nn.Linear(64, n) for n in (5, 1, 3))
    optimizer = torch.optim.SGD([*body.parameters(), *heads.parameters()], 0.05)
    for _ in range(STEPS):
        h = body(torch.randn(400, 32))
        losses = [F.cross_entropy(heads[0](h), torch.randint(5, (400,))), heads[1](h).pow(2).mean(), F.smooth_l1_loss(heads[2](h), torch.randn(400, 3))]
        norms = torch.stack([torch.cat([g.flatten() for g in grad(one, list(body.parameters()), retain_graph=True)]).norm() for one in losses])
        optimizer.zero_grad()
        sum(one * (norms.mean() / norm).detach() for one, norm in zip(losses, norms)).backward()
        out(*losses, norms)
        optimizer.step()
    return nn.ModuleList([body, heads])


program.shares = dict.fromkeys(program, SHARES)
@program
def weights_of_two_inner_steps(out):
    """MAML on sines: a task goes on from weights that the program has dropped by the time that memory runs out in the next one."""
    weights = [(torch.randn(40, 1)).requires_grad_(), (torch.randn(40, 40) / 6).requires_grad_(), (torch.randn(1, 40) / 6).requires_grad_()]
    optimizer = torch.optim.Adam(weights, 1e-3)

    def apply(x, fast):
        return F.linear(F.relu(F.linear(F.relu(F.linear(x, fast[0])), fast[1])), fast[2])

    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0
        for _ in range(4):
            known, asked, fast = torch.rand(160, 1), torch.rand(320, 1), weights
            for _ in range(2):
                slopes = grad(F.mse_loss(apply(known, fast), known.sin()), fast, create_graph=True)
                fast = [w - 0.01 * slope for w, slope in zip(fast, slopes)]
            total = total + F.mse_loss(apply(asked, fast), asked.sin())
        total.backward()
        optimizer.step()
        out(total)
    return nn.ParameterList(weights)


# Near the peak, what runs out is behind a pass that keeps its graph; path_lengths has little room.
program.shares |= {"attention_map": SHARES, "path_lengths": SHARES[:3], "losses_weighed_by_gradients": (0.99, 0.97, 0.8, 0.6), "gradients_of_each_task": (0.98, 0.9, 0.7, 0.5),
                   "weights_of_two_inner_steps": (0.92, 0.88, 0.8, 0.7, 0.6, 0.5)}

if __name__ == "__main__":
    main(PROGRAMS)
