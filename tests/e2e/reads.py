"""Steps that look at values in every way Python can, before backward, between, and after the step."""

import copy
import ctypes
import io
import pickle

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

from models import GptNet, LanguageModel, Vectors
from task import family


class Reading(Vectors):
    """A step that looks at its values before backward, before the optimizer, and after it."""

    symmetric = False  # single rows are looked at
    held_per_row = (32 + 10) * 4  # hidden values and outputs live to the end of the step, whether they are read or not

    def model(self):
        return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 10))

    def step(self, model, optimizer, data, record):
        x, y = data
        hidden = model[1](model[0](x))
        output = model[2](hidden)
        loss = F.cross_entropy(output, y)
        self.before(hidden, output, loss, y, record)
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        self.between(hidden, output, loss, y, record)
        optimizer.step()
        self.after(hidden, output, loss, y, record)
        record.value("loss", loss)

    def before(self, hidden, output, loss, y, record):
        pass

    def between(self, hidden, output, loss, y, record):
        pass

    def after(self, hidden, output, loss, y, record):
        pass


@family
class ReadItem(Reading):
    def before(self, hidden, output, loss, y, record):
        record.value("item", loss.item())
        record.value("float", float(loss))


@family
class ReadPrint(Reading):
    def before(self, hidden, output, loss, y, record):
        text = f"{loss:.4f} {loss} {output[0, 0]!r} {hidden[:2]}"
        assert "nan" not in text
        record.value("number", float(f"{loss:.3f}"))


@family
class ReadCondition(Reading):
    def before(self, hidden, output, loss, y, record):
        if loss > 1e6 or torch.isnan(loss) or not torch.isfinite(output).all():
            raise ValueError("diverged")
        record.value("positive", 1 if loss > 0 else 0)
        record.value("bool", bool((hidden.abs() < 2).all()))


@family
class ReadNumpy(Reading):
    def before(self, hidden, output, loss, y, record):
        record.value("output", output.detach().numpy().mean())
        record.value("array", numpy.asarray(loss.detach()))
        record.value("hidden", numpy.array(hidden.detach().cpu())[0].sum())

    def after(self, hidden, output, loss, y, record):
        record.value("later", output.detach().numpy().std())


@family
class ReadList(Reading):
    def before(self, hidden, output, loss, y, record):
        record.value("list", numpy.array(output.tolist()).sum())
        record.value("row", sum(float(v) for v in hidden[3]))
        record.value("first", [round(v.item(), 3) for v in output[0]][0])


@family
class ReadSave(Reading):
    def before(self, hidden, output, loss, y, record):
        file = io.BytesIO()
        torch.save({"output": output.detach(), "loss": loss.detach()}, file)
        file.seek(0)
        record.value("saved", torch.load(file)["output"].sum())

    def between(self, hidden, output, loss, y, record):
        record.value("pickled", pickle.loads(pickle.dumps(output.detach())).sum())
        record.value("deep", copy.deepcopy(output.detach()).sum())


@family
class ReadClone(Reading):
    def before(self, hidden, output, loss, y, record):
        clone = output.detach().clone()
        clone[0] = 0  # must not reach the output
        record.value("clone", clone.sum())
        other = output.to(torch.float64).sum()
        record.value("double", other)


@family
class ReadDlpack(Reading):
    def before(self, hidden, output, loss, y, record):
        record.value("dlpack", numpy.from_dlpack(output.detach()).sum())

    def between(self, hidden, output, loss, y, record):
        record.value("hidden", torch.from_dlpack(hidden.detach()).sum())


@family
class ReadStorage(Reading):
    """Storage and addresses: the raw way round the dispatcher."""

    def before(self, hidden, output, loss, y, record):
        data = output.detach()
        record.value("bytes", data.untyped_storage().nbytes())
        through = bytes(data.untyped_storage()[:16])
        record.value("through", numpy.frombuffer(through, dtype=str(data.dtype).removeprefix("torch.")))
        assert data.data_ptr() != 0

    def after(self, hidden, output, loss, y, record):
        assert hidden.data_ptr() != 0 and hidden.untyped_storage().data_ptr() != 0
        record.value("hidden", hidden)


@family
class ReadPointer(Reading):
    """The address itself, as ctypes and extensions take it."""

    def before(self, hidden, output, loss, y, record):
        dtype = numpy.dtype(str(output.dtype).removeprefix("torch."))
        record.value("output", numpy.frombuffer(ctypes.string_at(output.data_ptr(), output.nbytes), dtype=dtype))
        record.value("loss_there", numpy.frombuffer(ctypes.string_at(loss.data_ptr(), loss.nbytes), dtype=dtype))


@family
class ReadPartial(Reading):
    """Single rows and elements."""

    def before(self, hidden, output, loss, y, record):
        record.value("row", output[5])
        record.value("element", hidden[2, 7].item())
        record.value("column", output[:, 1].max())

    def between(self, hidden, output, loss, y, record):
        record.value("last", output[-1].sum())


@family
class ReadAfterStep(Reading):
    """The parameters have changed in place when the outputs are looked at."""

    def after(self, hidden, output, loss, y, record):
        record.value("hidden", hidden)
        record.value("output", output)
        record.value("probability", torch.softmax(output, 1).max())


@family
class ReadNextStep(Reading):
    """Outputs of the last step are compared with those of this one."""

    previous = None

    def before(self, hidden, output, loss, y, record):
        if self.previous is not None:
            record.value("drift", (output.detach() - self.previous).abs().mean())

    def after(self, hidden, output, loss, y, record):
        self.previous = output.detach()


@family
class ReadRunningTotal(Reading):
    """A tensor that lives across steps takes up the losses."""

    def model(self):
        self.total = torch.zeros(())
        self.kept = []
        return super().model()

    def before(self, hidden, output, loss, y, record):
        self.total += loss.detach()
        self.kept.append(loss.detach())

    def finish(self, model, record):
        record.value("total", self.total)
        record.value("kept", torch.stack(self.kept))


@family
class ReadMetadata(Reading):
    """Shapes, strides and flags need no values."""

    def before(self, hidden, output, loss, y, record):
        assert output.shape == (y.shape[0], 10) and output.stride() == (10, 1) and output.dtype == torch.get_default_dtype()
        assert output.requires_grad and not output.is_leaf and output.grad_fn is not None and output.is_contiguous()
        assert loss.dim() == 0 and loss.numel() == 1 and output.device.type == "cpu" and len(output) == len(y)
        assert output.detach().grad_fn is None and not output.detach().requires_grad
        assert torch.empty_like(output).shape == output.shape and output.new_zeros(2).shape == (2,)
        assert output.element_size() * output.nelement() == output.nbytes
        record.value("version", output._version)

    def between(self, hidden, output, loss, y, record):
        assert hidden.grad is None if hidden.is_leaf else True


@family
class ReadBackwardThrice(Reading):
    """The graph is used up after backward, as ever."""

    def between(self, hidden, output, loss, y, record):
        try:
            loss.backward()
        except RuntimeError as error:
            assert "second time" in str(error), error
            record.value("refused", 1)


@family
class ReadRetainedGradient(Reading):
    """retain_grad on an inner tensor: honoured or refused, never dropped."""

    splits = False

    def before(self, hidden, output, loss, y, record):
        output.retain_grad()

    def between(self, hidden, output, loss, y, record):
        record.value("retained", output.grad)


@family
class ReadPerplexity(LanguageModel):
    """What language models print."""

    def model(self):
        return GptNet(layers=1)

    def step(self, model, optimizer, data, record):
        x, y = data
        logits = model(x)
        loss = F.cross_entropy(logits.view(-1, 40), y.reshape(-1))
        record.value("perplexity", torch.exp(loss).item())
        optimizer.zero_grad()
        loss.backward()
        record.gradients(model)
        optimizer.step()
        predicted = logits.argmax(-1)
        keep = y != -100
        record.value("correct", ((predicted == y) & keep).sum().item() / keep.sum().item())
        record.value("loss", loss)
