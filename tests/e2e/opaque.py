"""Regions that koila cannot see into: Python functions with gradients of their own, compiled and scripted code, transforms, tensor subclasses, modes."""

import copy
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.prune
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from shared_functions import Doubled, Reversed
from task import family
from traps import HIDDEN, Sequences, Step, Trap, outputs, outputs_of, raising, register


def between(function):
    return register(function, "mix", Trap)


def trained_by(function):
    return register(function, "loss", Trap)


# ---- Python functions ----------------------------------------------------------------------------------------------------------


class Scaled(Function):
    """Saves input and output, keeps an attribute, gives no gradient for a number."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        y = torch.exp(-x.abs()) * factor
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return -gradient * y * x.sign(), None


class Crossed(Function):
    """Several inputs and outputs, in the newer style."""

    @staticmethod
    def forward(x, y, exponent):
        return x * y, x + y ** exponent, x.argmax(1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, ctx.exponent = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(x, y, output[0])

    @staticmethod
    def backward(ctx, product, total, _):
        x, y, xy = ctx.saved_tensors
        assert torch.equal(xy, x * y)
        return product * y + total, product * x + total * ctx.exponent * y ** (ctx.exponent - 1), None


@between
def function_with_saved_output(h):
    return Scaled.apply(h, 0.5) + h


@between
def function_on_a_view(h):
    return Scaled.apply(h[:, ::2], 2.0).repeat(1, 2) + Scaled.apply(h.T, 1).T + Scaled.apply(h[1:], 1).sum(0)


@between
def functions_one_after_another(h):
    for _ in range(3):
        h = Scaled.apply(h, 0.9) + 0.5 * h
    return torch.tanh(Scaled.apply(Scaled.apply(h, 2.0), 0.5))


@between
def function_of_several(h):
    a, b, best = Crossed.apply(h, torch.tanh(h) + 2, 2)
    return a + b + best[:, None] * 0.1


@between
def function_whose_output_is_not_used(h):
    return Crossed.apply(h, h * 2 + 1, 3)[1]


class Sorted(Function):
    @staticmethod
    def forward(ctx, x):
        values, indices = torch.sort(x, dim=0)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx, gradient, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter_(0, indices, gradient)


@between
def function_that_mixes_rows(h):
    values, indices = Sorted.apply(h)
    return h + 0.1 * values + indices / len(h)


@between
def function_that_writes_its_input(h):
    h = h + 1
    kept = h.detach()
    doubled = Doubled.apply(h)
    assert doubled is h
    return h + kept


@between
def function_that_writes_through_a_view(h):
    h = h + 1
    return h + Doubled.apply(h.clone()[:, :]) if len(h) else h


class OnceOnly(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        assert not torch.is_grad_enabled()
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


@between
def function_once_differentiable(h):
    return OnceOnly.apply(h * 2)


@between
def gradient_reversed(h):
    return Reversed.apply(h, 0.3) + 0.5 * h.detach()


class Returned(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x, y * 1

    @staticmethod
    def backward(ctx, a, b):
        return a * 0.5, b * 2


@between
def function_that_returns_its_input(h):
    a, b = Returned.apply(h, h)
    return a + b


class Rounded(Function):
    """Straight through."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@between
def straight_through(h):
    return Rounded.apply(h) + (torch.sign(h) - h).detach() + h


class NormalisedGradient(Function):
    """Backward looks at the gradient of the whole batch."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / (gradient.norm() + 1e-3) - gradient.mean(0)


@between
def gradient_normalised(h):
    return NormalisedGradient.apply(h)


class Attribute(Function):
    """Keeps tensors as attributes, and asks what is needed."""

    @staticmethod
    def forward(ctx, x, weight, mask):
        ctx.x, ctx.weight, ctx.mask = x, weight, mask
        ctx.set_materialize_grads(False)
        return F.linear(x, weight) * mask, x.mean(1), x.detach().max()

    @staticmethod
    def backward(ctx, gradient, unused, other):
        assert ctx.needs_input_grad == (True, True, False) and unused is None
        gradient = gradient * ctx.mask
        return gradient @ ctx.weight, gradient.T @ ctx.x, None


@trained_by
def function_with_a_weight(model, x, y):
    h = torch.tanh(model[0](x))
    h, mean, most = Attribute.apply(h, model[1].weight, torch.arange(len(x))[:, None] % 4 > 0)
    return F.cross_entropy(model[2](torch.tanh(h) + most.detach()), y)


@trained_by
def function_of_the_loss(model, x, y):
    """A fused cross entropy: forward makes the gradient already."""

    class Fused(Function):
        @staticmethod
        def forward(ctx, h, weight, y):
            p = (h @ weight.T).softmax(1)
            p_y = p.gather(1, y[:, None])
            p = p.scatter_add(1, y[:, None], -torch.ones_like(p_y)) / len(h)
            ctx.save_for_backward(p @ weight, p.T @ h)
            return -p_y.log().mean()

        @staticmethod
        def backward(ctx, gradient):
            of_h, of_weight = ctx.saved_tensors
            return gradient * of_h, gradient * of_weight, None

    h = torch.tanh(model[1](torch.tanh(model[0](x))))
    return Fused.apply(h, model[2].weight, y) + model[2].bias.square().sum()


class Counted(Function):
    calls = []

    @staticmethod
    def forward(ctx, x):
        Counted.calls.append(len(x))
        ctx.save_for_backward(x)
        return x ** 2

    @staticmethod
    def backward(ctx, gradient):
        Counted.calls.append(-len(gradient))
        return 2 * ctx.saved_tensors[0] * gradient


@family
class FunctionWithSideEffects(Step):
    """It is called as often as plain PyTorch calls it, with all rows."""

    def train(self, model, optimizer, x, y, record):
        Counted.calls.clear()
        loss = F.cross_entropy(outputs_of(model, Counted.apply(torch.tanh(model[0](x)))), y)
        loss.backward()
        record.value("calls", list(Counted.calls))
        record.value("loss", loss)


class GradientInside(Function):
    """Its backward builds a graph and goes through it, as checkpoints do."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.tanh(x @ weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            y = torch.tanh(x @ weight)
        return torch.autograd.grad(y, (x, weight), gradient)


@trained_by
def function_with_a_graph_inside(model, x, y):
    h = GradientInside.apply(torch.tanh(model[0](x)), model[1].weight)
    return F.cross_entropy(model[2](h), y) + GradientInside.apply(h, model[1].weight).square().mean()


class Cubed(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x ** 2 * gradient


@family
class FunctionDifferentiatedTwice(Step):
    def train(self, model, optimizer, x, y, record):
        x = x.clone().requires_grad_()
        loss = outputs_of(model, Cubed.apply(model[0](x))).square().mean()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.square().sum()).backward()
        record.value("slope", slope)
        record.value("input", x.grad)


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = Scaled.apply(ctx.x, 2.0)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        ctx.y.backward(gradient)
        return ctx.x.grad


@between
def function_within_a_function(h):
    return Nested.apply(h) + h


@between
def function_without_grad(h):
    with torch.no_grad():
        g = Scaled.apply(h, 3.0)
    return h + g + Scaled.apply(h.detach(), 1.0)


class Failing(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError(f"no gradient of {len(gradient)} rows")


@family
class FunctionThatFails(Step):
    """Its error is the program's own, and reaches it."""

    def train(self, model, optimizer, x, y, record):
        loss = F.cross_entropy(outputs_of(model, Failing.apply(torch.tanh(model[0](x)))), y)
        raising(record, "raised", loss.backward, model)
        record.value("loss", loss)
        F.cross_entropy(outputs(model, x), y).backward()


@torch.library.custom_op("koila_e2e::swish", mutates_args=())
def swish(x: torch.Tensor, beta: float) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


@swish.register_fake
def _(x, beta):
    return torch.empty_like(x)


def swish_backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    s = torch.sigmoid(ctx.beta * x)
    return gradient * (s + ctx.beta * x * s * (1 - s)), None


def swish_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.beta = inputs[1]


swish.register_autograd(swish_backward, setup_context=swish_context)


@torch.library.custom_op("koila_e2e::add_mean_", mutates_args={"x"})
def add_mean_(x: torch.Tensor) -> None:
    x += x.mean(0)


@between
def custom_operator(h):
    return swish(h, 2.0) + torch.ops.koila_e2e.swish(h * 2, 1.0)


@between
def custom_operator_that_writes(h):
    g = h.detach().clone()
    add_mean_(g)
    return h + g


# ---- checkpoints ---------------------------------------------------------------------------------------------------------------


@trained_by
def checkpoints_within_checkpoints(model, x, y):
    def inner(h):
        return torch.tanh(model[1](h))

    def outer(h):
        return checkpoint(inner, torch.tanh(h), use_reentrant=False) + h

    h = checkpoint(outer, model[0](x), use_reentrant=False)
    return F.cross_entropy(model[2](h), y)


@trained_by
def reentrant_checkpoints_within_each_other(model, x, y):
    def outer(h):
        return checkpoint(lambda g: torch.tanh(model[1](g)), torch.tanh(h), use_reentrant=True) + h

    return F.cross_entropy(model[2](checkpoint(outer, model[0](x), use_reentrant=True)), y)


@trained_by
def checkpoint_of_everything(model, x, y):
    """Loss included, with keyword arguments, and None among what comes back."""
    def whole(x, y, *, scale=1.0, extra=None):
        out = outputs(model, x)
        return F.cross_entropy(out, y) * scale, extra, out.detach()

    loss, _, out = checkpoint(whole, x, y, use_reentrant=False, scale=2.0)
    return loss + out.mean() * 0


@trained_by
def checkpoint_with_draws(model, x, y):
    """What is drawn in it is drawn again in backward, and the generator is put back."""
    def noisy(h):
        h = torch.tanh(model[1](h + 0.1 * torch.randn_like(h)))
        return h * (torch.rand(len(h), 1, dtype=h.dtype) < 0.8)

    h = checkpoint(noisy, torch.tanh(model[0](x)), use_reentrant=False)
    h = h + checkpoint(noisy, h, use_reentrant=True)
    return F.cross_entropy(model[2](h), y)


@trained_by
def checkpoints_in_sequence(model, x, y):
    layers = [model[0], nn.Tanh(), model[1], nn.Tanh(), model[2]]
    return F.cross_entropy(checkpoint_sequential(layers, 2, x, use_reentrant=False), y)


@trained_by
def selective_checkpoint(model, x, y):
    from functools import partial
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    context = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default, torch.ops.aten.addmm.default])
    h = checkpoint(lambda h: torch.tanh(model[1](torch.tanh(h))), model[0](x), use_reentrant=False, context_fn=context)
    return F.cross_entropy(model[2](h), y)


@trained_by
def checkpoint_that_mixes_rows(model, x, y):
    def block(h, order):
        return torch.tanh(model[1](h - h.mean(0)))[order]

    order = torch.randperm(len(x))
    h = checkpoint(block, torch.tanh(model[0](x)), order, use_reentrant=True)
    return F.cross_entropy(model[2](checkpoint(block, h, order, use_reentrant=False)), y)


# ---- compiled, scripted, traced ------------------------------------------------------------------------------------------------


class Compiled(Trap):
    """One module in the middle is compiled."""

    wraps_errors = True  # what runs out while it is compiled is Dynamo's error

    backend = "eager"
    fullgraph = True

    class Block(nn.Module):
        breaks = False

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(HIDDEN, HIDDEN)

        def forward(self, h):
            h = torch.tanh(self.layer(h))
            if self.breaks:
                torch._dynamo.graph_break()
            return h * 2 + h.relu()

    def model(self):
        model = super().model()
        model[1] = self.Block()
        model[1].breaks = not self.fullgraph
        return model

    def compiled(self, module):
        if not hasattr(self, "module"):
            torch._dynamo.config.suppress_errors = False
            self.module = torch.compile(module, backend=self.backend, fullgraph=self.fullgraph)
        return self.module

    def loss(self, model, x, y):
        return F.cross_entropy(model[2](self.compiled(model[1])(torch.tanh(model[0](x)))), y)


@family
class CompiledEager(Compiled):
    pass


@family
class CompiledEagerWithBreak(Compiled):
    fullgraph = False


@family
class CompiledAotEager(Compiled):
    backend = "aot_eager"


@family
class CompiledAotEagerWithBreak(Compiled):
    backend = "aot_eager"
    fullgraph = False


@family
class CompiledDynamic(Compiled):
    """With sizes that are symbols."""

    def compiled(self, module):
        if not hasattr(self, "module"):
            self.module = torch.compile(module, backend="aot_eager", dynamic=True)
        return self.module


@family
class CompiledForChangingRows(Compiled):
    """The second size makes it dynamic."""

    backend = "aot_eager"

    def loss(self, model, x, y):
        self.calls = getattr(self, "calls", 0) + 1
        keep = len(x) - (self.calls == 2)
        return super().loss(model, x[:keep], y[:keep])


class CompiledStep(Compiled):
    """The whole model and its loss are compiled, batch statistics included."""

    def loss(self, model, x, y):
        def whole(x, y):
            h = torch.tanh(model[0](x))
            h = torch.tanh(model[1](h - h.mean(0)))
            if not self.fullgraph:
                torch._dynamo.graph_break()
            return F.cross_entropy(model[2](h), y)

        return self.compiled(whole)(x, y)


@family
class CompiledWhole(CompiledStep):
    backend = "aot_eager"


@family
class CompiledWholeWithBreak(CompiledStep):
    backend = "aot_eager"
    fullgraph = False


class Inductor:
    backend = "inductor"
    slow = True

    def compiled(self, module):
        import torch._inductor.config
        torch._inductor.config.compile_threads = 1
        return super().compiled(module)


@family
class CompiledInductor(Inductor, Compiled):
    pass


@family
class CompiledInductorWithBreak(Inductor, Compiled):
    fullgraph = False


@family
class CompiledWholeInductor(Inductor, CompiledStep):
    pass


@family
class CompiledAutograd(Compiled):
    """Backward itself is compiled."""

    def step(self, model, optimizer, data, record):
        loss = self.loss(model, *data)
        optimizer.zero_grad()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


class ScriptedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, h):
        if h.size(0) > 2:
            h = torch.tanh(self.layer(h))
        for i in range(2):
            h = h * 1.1 + torch.zeros(h.size(0), 1, dtype=h.dtype)
        return h.view(-1).view(h.size(0), -1)


class Scripted(Trap):
    # The interpreter makes a RuntimeError of whatever an operator throws.
    wraps_errors = True

    def prepare(self, module):
        return torch.jit.script(module)

    def model(self):
        model = super().model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model[1] = self.prepare(ScriptedBlock())
        return model


@family
class ScriptedModule(Scripted):
    pass


@family
class TracedModule(Scripted):
    def prepare(self, module):
        return torch.jit.trace(module, torch.randn(3, HIDDEN), check_trace=False)


@family
class TracedByFx(Scripted):
    def prepare(self, module):
        return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.LayerNorm(HIDDEN)))


@family
class ExportedModule(Scripted):
    def prepare(self, module):
        block = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
        return torch.export.export(block, (torch.randn(4, HIDDEN),), dynamic_shapes=({0: torch.export.Dim("rows")},)).module()


@family
class ScriptedAndForked(Scripted):
    """torch.jit.fork: another thread takes the second half."""

    def prepare(self, module):
        class Forks(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(HIDDEN, HIDDEN)

            def forward(self, h):
                other = torch.jit.fork(self.layer, h * 2)
                return torch.tanh(self.layer(h)) + torch.jit.wait(other)

        return torch.jit.script(Forks())


# ---- transforms ----------------------------------------------------------------------------------------------------------------


def functional(model, parameters, x):
    return torch.func.functional_call(model, parameters, (x,))


class Whole(nn.Sequential):
    """The model as one module, as functional_call wants it."""

    def __init__(self):
        super().__init__(nn.Linear(8, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 5))


class Functorch(Step):
    def model(self):
        return Whole()


@family
class GradientOfEachRow(Functorch):
    """Per-sample gradients by vmap of grad, clipped and averaged."""

    def train(self, model, optimizer, x, y, record):
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def loss_of(parameters, x, y):
            return F.cross_entropy(functional(model, parameters, x[None]), y[None])

        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        for name, p in model.named_parameters():
            p.grad = (each[name] * (1 / norm).clamp(max=1).view(-1, *[1] * p.dim())).mean(0)


@family
class MappedForward(Functorch):
    """vmap of the forward, and of the loss of each row, with ordinary backward."""

    def train(self, model, optimizer, x, y, record):
        out = torch.vmap(model)(x)
        losses = torch.vmap(lambda x, y: F.cross_entropy(model(x)[None], y[None]))(x, y)
        loss = F.cross_entropy(out, y) + losses.mean() + torch.vmap(torch.outer)(out, out).mean() + torch.vmap(torch.sum, in_dims=1)(out).std()
        loss.backward()
        record.value("loss", loss)


@family
class TransformsInTheLoss(Functorch):
    """A Jacobian penalty, a forward-mode derivative and a functional gradient within an ordinary step."""

    def train(self, model, optimizer, x, y, record):
        parameters = dict(model.named_parameters())
        jacobian = torch.vmap(torch.func.jacrev(lambda x: functional(model, parameters, x)))(x)
        value, slope = torch.func.jvp(model, (x,), (torch.ones_like(x),))
        inner = torch.func.grad(lambda x: functional(model, parameters, x).square().mean())(x)
        loss = F.cross_entropy(model(x), y) + 0.1 * jacobian.square().mean() + 0.1 * slope.square().mean() + value.mean() + inner.square().sum()
        loss.backward()
        record.value("loss", loss)


@family
class ForwardModeGradient(Functorch):
    """Dual numbers."""

    def train(self, model, optimizer, x, y, record):
        import torch.autograd.forward_ad as fwd
        with fwd.dual_level():
            out = fwd.unpack_dual(model(fwd.make_dual(x, torch.ones_like(x))))
            record.value("tangent", out.tangent)
            loss = F.cross_entropy(out.primal, y) + out.tangent.square().mean()
            loss.backward()
        record.value("loss", loss)


@family
class FunctionalCall(Functorch):
    """Other weights stand in for the module's, made of them."""

    def train(self, model, optimizer, x, y, record):
        fast = {name: p * 1.1 for name, p in model.named_parameters()}
        loss = F.cross_entropy(functional(model, fast, x), y)
        slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        faster = {name: p - 0.1 * s for (name, p), s in zip(fast.items(), slopes)}
        total = loss + F.cross_entropy(functional(model, faster, x), y)
        total.backward()
        record.value("loss", total)


@family
class Ensemble(Functorch):
    """Three models at once."""

    def model(self):
        return nn.ModuleList(Whole() for _ in range(3))

    def train(self, model, optimizer, x, y, record):
        parameters, buffers = torch.func.stack_module_state(list(model))
        base = copy.deepcopy(model[0]).to("meta")
        out = torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x,)))(parameters, buffers)
        loss = F.cross_entropy(out.flatten(0, 1), y.repeat(3))
        loss.backward()
        for name, p in parameters.items():
            for i, m in enumerate(model):
                m.get_parameter(name).grad = p.grad[i]
        record.value("loss", loss)


@family
class HessianOfTheLoss(Functorch):
    wraps_errors = True  # the derivatives of some operators are scripted

    def train(self, model, optimizer, x, y, record):
        bias = model[4].bias

        def loss_of(b):
            return F.cross_entropy(model[3](model[2](model[1](model[0](x)))) @ model[4].weight.T + b, y)

        record.value("hessian", torch.func.hessian(loss_of)(bias.detach()))
        record.value("same", torch.autograd.functional.hessian(loss_of, bias.detach()))
        record.value("jacobian", torch.autograd.functional.jacobian(model, x[:2]))
        loss_of(bias).backward()


# ---- subclasses and modes ------------------------------------------------------------------------------------------------------


class Tagged(torch.Tensor):
    """By __torch_function__."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        out = super().__torch_function__(function, types, args, kwargs or {})
        if function is torch.tanh:
            out = out * 1.5
        return out


class Wrapped(torch.Tensor):
    """By __torch_dispatch__, around another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), inner.stride(), inner.storage_offset(), dtype=inner.dtype,
                                                   requires_grad=inner.requires_grad)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        from torch.utils._pytree import tree_map
        out = function(*tree_map(lambda t: t.inner if isinstance(t, cls) else t, args),
                       **tree_map(lambda t: t.inner if isinstance(t, cls) else t, kwargs or {}))
        if function is torch.ops.aten.relu.default:
            out = out * 2
        return tree_map(lambda t: cls(t) if isinstance(t, torch.Tensor) else t, out)


@trained_by
def tagged_input(model, x, y):
    return F.cross_entropy(outputs(model, x.as_subclass(Tagged)), y).as_subclass(torch.Tensor)


@trained_by
def tagged_hidden(model, x, y):
    h = torch.tanh(model[0](x)).as_subclass(Tagged)
    h = torch.tanh(model[1](h)) + h.mean(0)
    return F.cross_entropy(model[2](h.as_subclass(torch.Tensor)), y)


@family
class WrappedInput(Step):
    def train(self, model, optimizer, x, y, record):
        out = model[2](torch.relu(model[1](torch.relu(model[0](Wrapped(x))))))
        loss = F.cross_entropy(out, y)
        loss.backward()
        for p in model.parameters():
            if isinstance(p.grad, Wrapped):
                inner, p.grad = p.grad.inner, None
                p.grad = inner
        record.value("loss", loss.detach().inner)


@family
class MaskedTensors(Trap):
    def loss(self, model, x, y):
        from torch.masked import masked_tensor
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            h = torch.tanh(model[0](x))
            masked = masked_tensor(h, x[:, :1].expand_as(h) > -0.5)
            mean = torch.mean(masked, 0).to_tensor(0.0)
        return F.cross_entropy(outputs_of(model, h), y) + mean.square().sum()


@family
class NestedTensors(Sequences):
    """Rows of unequal length, jagged, as attention takes them."""

    def loss(self, model, x, y):
        lengths = [1 + i % self.length for i in range(len(x))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.nested_tensor([row[:n] for row, n in zip(x, lengths)], layout=torch.jagged)
            out = outputs(model, nested)
            out = out.values()
        return F.cross_entropy(out, torch.cat([row[:n] for row, n in zip(y, lengths)]))


@family
class NestedFromHidden(Sequences):
    def loss(self, model, x, y):
        h = torch.tanh(model[0](x))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.as_nested_tensor([row[:1 + i % self.length] for i, row in enumerate(h)], layout=torch.jagged)
            padded = torch.nested.to_padded_tensor(torch.tanh(nested), 0.0, output_size=(len(x), self.length, HIDDEN))
        return F.cross_entropy(outputs_of(model, h + padded).flatten(0, 1), y.flatten())


@family
class NestedStridedFromHidden(Sequences):
    """The older kind of nested tensor, which is no class of Python's."""

    def loss(self, model, x, y):
        h = torch.tanh(model[0](x))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.as_nested_tensor([row[:1 + i % self.length] for i, row in enumerate(h)])
            padded = torch.nested.to_padded_tensor(nested * 2, 0.0, output_size=(len(x), self.length, HIDDEN))
        return F.cross_entropy(outputs_of(model, h + padded).flatten(0, 1), y.flatten())


@family
class OperatorsCounted(Step):
    """A dispatch mode counts floating-point operations; a function mode sees calls."""

    def train(self, model, optimizer, x, y, record):
        from torch.overrides import TorchFunctionMode
        from torch.utils.flop_counter import FlopCounterMode

        class Calls(TorchFunctionMode):
            seen = 0

            def __torch_function__(self, function, types, args=(), kwargs=None):
                Calls.seen += 1
                return function(*args, **(kwargs or {}))

        with FlopCounterMode(display=False) as counter, Calls():
            loss = F.cross_entropy(outputs(model, x), y)
            loss.backward()
        record.value("operations", counter.get_total_flops())
        record.value("calls", Calls.seen)
        record.value("loss", loss)


@family
class ModeAroundForward(Step):
    """The mode ends before backward, and changes one operator."""

    def train(self, model, optimizer, x, y, record):
        from torch.utils._python_dispatch import TorchDispatchMode

        class Doubles(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                out = function(*args, **(kwargs or {}))
                return out * 2 if function is torch.ops.aten.tanh.default else out

        h = model[0](x)
        with Doubles():
            h = torch.tanh(h)
        loss = F.cross_entropy(outputs_of(model, h), y)
        loss.backward()
        record.value("loss", loss)


@family
class DefaultDevice(Step):
    def train(self, model, optimizer, x, y, record):
        with torch.device("cpu"):
            h = torch.tanh(model[0](x)) + torch.ones(len(x), 1)
            loss = F.cross_entropy(outputs_of(model, h), y)
            loss.backward()
        record.value("loss", loss)


@family
class Profiled(Step):
    def train(self, model, optimizer, x, y, record):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            with torch.profiler.record_function("forward"):
                loss = F.cross_entropy(outputs(model, x), y)
            loss.backward()
        assert any("linear" in event.key for event in profile.key_averages())
        record.value("loss", loss)


@family
class FakeTensors(Step):
    """The model is tried out on tensors without memory first."""

    def train(self, model, optimizer, x, y, record):
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            shape = outputs(copy.deepcopy(model), mode.from_tensor(x)).shape
        meta = copy.deepcopy(model).to("meta")
        assert shape == outputs(meta, x.to("meta")).shape
        loss = F.cross_entropy(outputs(model, x), y)
        loss.backward()
        record.value("loss", loss)


@family
class MadeToGraph(Step):
    """make_fx traces the forward; its graph is what runs."""

    def train(self, model, optimizer, x, y, record):
        from torch.fx.experimental.proxy_tensor import make_fx
        graph = make_fx(lambda x: torch.tanh(x * 2) + x.mean(0))(x)
        h = torch.tanh(model[0](graph(x)))
        loss = F.cross_entropy(outputs_of(model, graph(h)), y)
        loss.backward()
        record.value("loss", loss)


# ---- modules that are more than they seem --------------------------------------------------------------------------------------


@family
class FakeQuantised(Trap):
    """Observers keep the least and the most of the batch, in float32."""

    tolerance = 2e-5

    def model(self):
        from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
        model = super().model().float()
        for _ in range(2):
            model.append(FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8))
        return model

    def loss(self, model, x, y):
        h = model[3](torch.tanh(model[0](x.float())))
        return F.cross_entropy(model[2](model[4](torch.tanh(model[1](h)))), y)


@family
class QuantisationAware(Trap):
    """prepare_qat: weights are fake-quantised too, by a fused kernel."""

    tolerance = 2e-5

    def model(self):
        import torch.ao.quantization as quantization
        torch.set_default_dtype(torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = nn.Sequential(quantization.QuantStub(), nn.Linear(8, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 5), quantization.DeQuantStub()).float().train()
            model.qconfig = quantization.get_default_qat_qconfig("x86")
            return quantization.prepare_qat(model)

    def loss(self, model, x, y):
        return F.cross_entropy(model(x.float()), y)


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).T


@family
class Parametrised(Trap):
    def model(self):
        model = super().model()
        torch.nn.utils.parametrize.register_parametrization(model[1], "weight", Symmetric())
        torch.nn.utils.parametrizations.weight_norm(model[0])
        torch.nn.utils.parametrizations.orthogonal(model[2])
        return model

    def loss(self, model, x, y):
        with torch.nn.utils.parametrize.cached():
            return F.cross_entropy(outputs(model, x), y) + outputs(model, x * 2).square().mean()


@family
class SpectralNormInTheMiddle(Trap):
    """Power iterations write buffers in every forward, twice a step."""

    def model(self):
        model = super().model()
        torch.nn.utils.parametrizations.spectral_norm(model[1])
        torch.nn.utils.spectral_norm(model[2])
        return model

    def loss(self, model, x, y):
        return F.cross_entropy(outputs(model, x), y) + outputs(model, -x).square().mean()


@family
class Pruned(Trap):
    def model(self):
        model = super().model()
        torch.nn.utils.prune.random_unstructured(model[1], "weight", 0.5)
        torch.nn.utils.prune.l1_unstructured(model[0], "bias", 0.5)
        return model


@family
class LazyModules(Trap):
    """Parameters come to be in the first forward."""

    def model(self):
        return nn.ModuleList([nn.Linear(8, HIDDEN), nn.LazyLinear(HIDDEN), nn.LazyLinear(5)])

    def optimizer(self, model, name):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, model, optimizer, data, record):
        loss = self.loss(model, *data)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        record.value("loss", loss)


@family
class HooksEverywhere(Step):
    """Forward hooks of all modules, hooks of tensors, nodes and several gradients at once, and one that removes itself."""

    def train(self, model, optimizer, x, y, record):
        seen = []
        handles = [torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: seen.append(len(output))),
                   model[1].register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 2,))]
        h = torch.tanh(model[0](x))
        h.register_hook(lambda g: seen.append(g.norm().item()))
        out = outputs_of(model, h)
        handles.append(torch.autograd.graph.register_multi_grad_hook([h, model[2].weight], lambda gs: seen.append(float(sum(g.norm() for g in gs)))))
        out.grad_fn.register_prehook(lambda gs: tuple(g * 0.5 for g in gs))
        out.grad_fn.register_hook(lambda inputs, gs: seen.append(float(gs[0].norm())))
        once = model[0].weight.register_hook(lambda g: (once.remove(), g * 3)[1])
        loss = F.cross_entropy(out, y)
        loss.backward()
        for handle in handles:
            handle.remove()
        record.value("seen", seen)
        record.value("loss", loss)


@family
class GradientEdges(Step):
    """The place in the graph is kept, the tensor is not."""

    def train(self, model, optimizer, x, y, record):
        h = torch.tanh(model[0](x))
        edge = torch.autograd.graph.get_gradient_edge(h)
        out = outputs_of(model, h)
        del h
        loss = F.cross_entropy(out, y)
        (slope,) = torch.autograd.grad(loss, edge, retain_graph=True)
        record.value("slope", slope)
        loss.backward()
        record.value("loss", loss)


@family
class SteppedInBackward(Step):
    """Each parameter has an optimizer of its own, which steps as soon as its gradient is there."""

    def model(self):
        model = super().model()
        self.optimizers = {p: torch.optim.SGD([p], lr=0.05, momentum=0.9) for p in model.parameters()}
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.stepped)
        return model

    def stepped(self, p):
        self.optimizers[p].step()
        self.optimizers[p].zero_grad()

    def step(self, model, optimizer, data, record):
        loss = self.loss(model, *data)
        loss.backward()
        assert all(p.grad is None for p in model.parameters())
        record.value("loss", loss)
        for name, p in model.named_parameters():
            record.value(name, p)


@family
class HalfPrecision(Step):
    """Autocast around a part, a function of its own in it, and a parameter that is used in both precisions."""

    tolerance = 3e-2

    def train(self, model, optimizer, x, y, record):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.tanh(model[0](x.float().to(x.dtype)))
            assert model[1](h).dtype in (torch.bfloat16, x.dtype)
            with torch.autocast("cpu", enabled=False):
                h = torch.tanh(model[1](h.to(x.dtype)))
            out = model[2](h) + model[2](h * 2)
        loss = F.cross_entropy(out.float(), y)
        loss.backward()
        record.value("loss", loss)


@family
class ReplicasByHand(Step):
    """Rows are scattered to two replicas, which run in threads, and gathered."""

    def train(self, model, optimizer, x, y, record):
        import threading
        parts, out = x.chunk(2), [None, None]

        def work(i):
            try:
                out[i] = outputs(model, parts[i])
            except BaseException as error:
                out[i] = error

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(parts))]
        for thread in threads:
            thread.start()
            thread.join()
        for each in out:
            if isinstance(each, BaseException):
                raise each
        loss = F.cross_entropy(torch.cat(out[:len(parts)]), y)
        loss.backward()
        record.value("loss", loss)


@family
class BackwardInAnotherThread(Step):
    def train(self, model, optimizer, x, y, record):
        import threading
        loss = F.cross_entropy(outputs(model, x), y)
        failed = []

        def work():
            try:
                loss.backward()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        record.value("loss", loss)


@family
class DataParallel(Step):
    """Without devices it hands its input on."""

    def model(self):
        return nn.DataParallel(Whole())

    def train(self, model, optimizer, x, y, record):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        record.value("loss", loss)


@family
class DistributedDataParallel(Step):
    """In one process: its reducer hangs on the gradients' accumulators."""

    def model(self):
        import torch.distributed as dist
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return nn.parallel.DistributedDataParallel(Whole())

    def train(self, model, optimizer, x, y, record):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        record.value("loss", loss)


@family
class PackedRows(Sequences):
    """Packed by hand into one long sequence with offsets, and nn.utils.rnn's own packing."""

    def model(self):
        model = super().model()
        model.append(nn.GRU(HIDDEN, HIDDEN, batch_first=True))
        return model

    def loss(self, model, x, y):
        lengths = torch.arange(len(x)) % self.length + 1
        h = torch.tanh(model[0](x))
        packed = nn.utils.rnn.pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
        packed = nn.utils.rnn.PackedSequence(torch.tanh(packed.data), *packed[1:])
        out, last = model[3](packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=self.length)
        whole = nn.utils.rnn.pad_sequence([row[:n] for row, n in zip(h, lengths.tolist())], batch_first=True)
        return F.cross_entropy(outputs_of(model, out).transpose(1, 2), y) + last.square().mean() + whole.square().mean()


# ---- other kinds of tensors ----------------------------------------------------------------------------------------------------


@between
def complex_hidden(h):
    z = torch.complex(h[:, :6].contiguous(), h[:, 6:].contiguous())
    z = torch.exp(1j * z.angle()) * z.abs().sqrt() + z.conj() * z.mean(0)
    return torch.cat([z.real, z.imag], 1) + torch.view_as_real(z).flatten(1) + torch.view_as_complex(h.view(-1, 6, 2)).abs().repeat(1, 2)


@family
class ComplexWeights(Step):
    def model(self):
        model = super().model()
        model.append(nn.ParameterList([torch.randn(8, 6, dtype=torch.complex128) * 0.3]))
        return model

    def train(self, model, optimizer, x, y, record):
        z = x.to(torch.complex128) @ model[3][0]
        z = z * torch.polar(torch.ones(len(x), 1), x[:, :1])
        h = torch.tanh(model[0](x)) + torch.cat([z.real, z.imag], 1) + (z @ z.mH).real.mean(1, keepdim=True)
        loss = F.cross_entropy(outputs_of(model, h), y) + z.abs().square().mean()
        loss.backward()
        record.value("loss", loss)


@family
class SparseGradients(Step):
    """An embedding with sparse gradients."""

    budgeted = False  # after an error a gradient would be left that NumPy has no array for

    def model(self):
        model = super().model()
        model.append(nn.Embedding(30, HIDDEN, sparse=True))
        model.append(nn.EmbeddingBag(30, HIDDEN, mode="sum", sparse=True))
        return model

    def train(self, model, optimizer, x, y, record):
        tokens = (x[:, :4].abs() * 8).long().clamp(max=29)
        h = torch.tanh(model[0](x)) + model[3](tokens).mean(1) + model[4](tokens)
        loss = F.cross_entropy(outputs_of(model, h), y)
        loss.backward()
        for p in model.parameters():
            if p.grad.is_sparse:
                record.value("sparse", p.grad.coalesce().indices())
                p.grad = p.grad.to_dense()
        record.value("loss", loss)


@trained_by
def sparse_neighbours(model, x, y):
    """A graph of the rows, sparse, as COO and CSR; and a sparse input."""
    n = len(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
        neighbours = torch.sparse_coo_tensor(index, torch.ones(n, dtype=x.dtype), (n, n))
        h = torch.tanh(model[0](x))
        h = h + torch.sparse.mm(neighbours, h) + 0.5 * (neighbours.to_sparse_csr() @ h) + torch.sparse.mm(x.relu().to_sparse(), model[0].weight.T)
    return F.cross_entropy(outputs_of(model, h), y)


@between
def sparse_and_back(h):
    return h + torch.tanh(h * (h.detach() > 0)).to_sparse().to_dense()


@between
def low_precision_in_the_middle(h):
    return h + h.float().double() * 0.1 + h.float().square().mean(1, keepdim=True).double()


LowPrecision = __import__("task").FAMILIES["low_precision_in_the_middle"]
LowPrecision.tolerance = 2e-5


# ---- flags and surroundings ----------------------------------------------------------------------------------------------------


@family
class InferenceBetweenSteps(Step):
    def train(self, model, optimizer, x, y, record):
        with torch.inference_mode():
            out = outputs(model, x)
            best = out.softmax(1).argmax(1)
        loss = F.cross_entropy(outputs(model, x), y) + F.cross_entropy(outputs(model, x), best.clone())
        loss.backward()
        raising(record, "raised", lambda: outputs(model, out[:, :5].repeat(1, 2)[:, :8]).mean().backward())
        with torch.inference_mode():
            record.value("later", outputs(model, x).mean())
        record.value("out", out)
        record.value("loss", loss)


@family
class DefaultTypeChanged(Step):
    """What is made without naming a type is of another one in the middle of the step."""

    def train(self, model, optimizer, x, y, record):
        before = torch.get_default_dtype()
        h = torch.tanh(model[0](x))
        torch.set_default_dtype(torch.float32)
        h = h + torch.full((len(x), 1), 0.3) + torch.rand(len(x), 1) + torch.arange(len(x))[:, None] / 7
        scale = torch.tensor(0.7)
        torch.set_default_dtype(before)
        loss = F.cross_entropy(outputs_of(model, h * scale), y)
        loss.backward()
        record.value("loss", loss)


@family
class Deterministic(Step):
    """Some operators take other kernels, and empty memory is filled."""

    def train(self, model, optimizer, x, y, record):
        torch.use_deterministic_algorithms(True)
        h = torch.tanh(model[0](x))
        h = h.index_add(0, torch.arange(len(x)) // 2, h) + torch.zeros(len(x), HIDDEN, dtype=h.dtype).scatter_add(1, torch.arange(HIDDEN).flip(0).expand_as(h), h)
        h = h.index_put((torch.arange(len(x)) // 2,), h, accumulate=True).cumsum(1)
        loss = F.cross_entropy(outputs_of(model, h / 10), y)
        loss.backward()
        torch.use_deterministic_algorithms(False)
        record.value("loss", loss)


@family
class Anomaly(Step):
    def train(self, model, optimizer, x, y, record):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.detect_anomaly():
                loss = F.cross_entropy(outputs(model, x), y)
                loss.backward()
        record.value("loss", loss)


@family
class AnomalyFound(Step):
    """A NaN in backward is an error. The function that it names may be koila's."""

    def train(self, model, optimizer, x, y, record):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.detect_anomaly():
                h = torch.tanh(model[0](x))
                loss = F.cross_entropy(outputs_of(model, h), y) + (h - h.detach()).sqrt().mean()
                try:
                    loss.backward()
                except RuntimeError as error:
                    record.value("raised", "returned nan values" in str(error))
                model.zero_grad()
        record.value("loss", loss)


@family
class NotANumber(Step):
    """Infinities and NaN are where plain has them."""

    def train(self, model, optimizer, x, y, record):
        h = torch.tanh(model[0](x))
        bad = (h - h.detach()).sqrt().mean() + torch.where(x[:, 0] > 0, x[:, 0].sqrt(), 0 * h[:, 0]).mean()
        loss = F.cross_entropy(outputs_of(model, h), y)
        (slope,) = torch.autograd.grad(bad, model[0].weight, retain_graph=True)
        record.value("slope", slope)
        loss.backward()
        record.value("loss", loss + 1 / bad.detach().clamp(max=0))


@family
class OneThread(Step):
    def train(self, model, optimizer, x, y, record):
        with torch.autograd.set_multithreading_enabled(False):
            loss = F.cross_entropy(outputs(model, x), y)
            loss.backward()
        record.value("loss", loss)


@family
class GradSwitchedOff(Step):
    """As a function, a decorator and a flag that stays."""

    def train(self, model, optimizer, x, y, record):
        torch.set_grad_enabled(False)
        target = outputs(model, x * 2)
        torch.set_grad_enabled(True)

        @torch.no_grad()
        def statistics(h):
            return h.mean(0), h.std(0)

        h = torch.tanh(model[0](x))
        mean, spread = statistics(h)
        with torch.no_grad(), torch.enable_grad():
            h = (h - mean) / (spread + 0.1)
        loss = F.cross_entropy(outputs_of(model, h), y) + F.mse_loss(outputs(model, x), target)
        loss.backward()
        record.value("loss", loss)


@family
class MutationAllowed(Step):
    """allow_mutation_on_saved_tensors keeps what backward needs when it is written to."""

    def train(self, model, optimizer, x, y, record):
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            h = torch.tanh(model[0](x))
            loss = F.cross_entropy(outputs_of(model, h), y)
            h.detach().mul_(0.5)
            loss.backward()
        record.value("loss", loss)
        record.value("hidden", h)


@family
class SavedTensorsForbidden(Step):
    def train(self, model, optimizer, x, y, record):
        h = torch.tanh(model[0](x))
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            out = outputs_of(model, h)
        loss = F.cross_entropy(out, y)
        loss.backward()
        record.value("loss", loss)


@family
class CopiedAndPickled(Step):
    """Modules are copied and saved between forward and backward; hidden leaves travel along."""

    def train(self, model, optimizer, x, y, record):
        import io
        out = outputs(model, x)
        other = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save([model.state_dict(), out.detach()], file)
        file.seek(0)
        state, kept = torch.load(file)
        loss = F.cross_entropy(out, y)
        loss.backward()
        raising(record, "raised", lambda: copy.deepcopy(out))
        record.value("kept", kept)
        record.value("other", outputs(other, x))
        record.value("loss", loss)


@family
class CaughtByWeakReference(Step):
    """A hidden tensor is let go of and looked for again. How long it lives is not compared: a region may hold it for longer."""

    def train(self, model, optimizer, x, y, record):
        import gc
        import weakref
        h = torch.tanh(model[0](x))
        reference = weakref.ref(h)
        loss = F.cross_entropy(outputs_of(model, h), y)
        assert reference() is h
        record.value("before", h)
        del h
        gc.collect()
        loss.backward()
        if reference() is not None:
            assert reference().shape == (len(x), HIDDEN)
        record.value("loss", loss)
