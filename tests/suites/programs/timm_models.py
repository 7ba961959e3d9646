"""One small model of every family of timm: a step with SGD and one with AdamW."""

import fnmatch

import pytest
import timm
import torch

SIZE = 64
# The smallest of a module by its name; a module's first where no name says so.
SMALL = ("test_*", "*_femto*", "*_atto*", "*_pico*", "*_nano*", "*_xxs*", "*_zepto*", "*_050*", "*_tiny*", "*_xs*", "*_xx*", "*mini*", "*_s0*", "*_t*", "*_b0*", "*_small*", "*18*", "*_s*")


def models():
    for module in sorted(timm.list_modules()):
        names = [name for name in timm.list_models(module=module) if "test_" not in name]
        for pattern in SMALL:
            found = [name for name in names if fnmatch.fnmatch(name, pattern)]
            if found:
                yield min(found, key=len)
                break
        else:
            if names:
                yield min(names, key=len)
    yield from timm.list_models("test_*")


def made(name):
    torch.manual_seed(0)
    options = {"num_classes": 5}
    wanted = timm.get_pretrained_cfg(name)
    if wanted is not None and wanted.fixed_input_size:
        try:
            return timm.create_model(name, img_size=SIZE, **options), SIZE
        except Exception:
            return timm.create_model(name, **options), wanted.input_size[-1]
    return timm.create_model(name, **options), SIZE


@pytest.mark.parametrize("name", models())
def test_model(name):
    model, size = made(name)
    if sum(p.numel() for p in model.parameters()) > 30e6:
        pytest.skip("large")
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    channels = (model.pretrained_cfg or {}).get("input_size", (3,))[0]
    x, y = torch.randn(4, channels, size, size), torch.randint(0, 5, (4,))
    out = model(x)
    out = out[0] if isinstance(out, (tuple, list)) else out
    loss = torch.nn.functional.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
