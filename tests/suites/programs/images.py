"""What kornia offers for images: losses, filters, enhancement, colour, morphology, geometry and augmentation, behind a convolution that learns."""

import inspect

import kornia
import pytest
import torch

ROWS, SIDE = 4, 16


def through(function, steps=2, channels=3):
    net = torch.nn.Conv2d(3, channels, 3, padding=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for _ in range(steps):
        image = net(torch.rand(ROWS, 3, SIDE, SIDE)).sigmoid()
        out = function(image)
        while isinstance(out, (tuple, list)):
            out = next(o for o in out if not isinstance(o, torch.Tensor) or o.grad_fn is not None)
        loss = (out * torch.linspace(0.5, 1.5, out.numel()).view_as(out)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def functions(module):
    for name, function in vars(module).items():
        if inspect.isfunction(function) and not name.startswith("_"):
            yield name, function


# Values for what a function wants beside its image.
GIVEN = {"kernel_size": (3, 3), "sigma": (1.0, 1.0), "factor": 0.7, "gamma": 0.8, "gain": 1.1, "angle": 15.0, "direction": 0.3, "sigma_color": 0.3, "sigma_space": (1.5, 1.5), "kernel": None,
         "low": 5, "high": 7, "thresh": 0.5, "thresholds": 0.5, "bits": 5, "brightness": 1.1, "contrast": 1.1, "additions": 0.1, "size": (8, 8), "radius": 2, "eps": 0.01, "radii": 2,
         "sharpness": 0.6, "scale_factor": 0.5, "dims": (8, 8), "blur_kernel": 3, "hw": (8, 8), "kernel_width": 3, "mean": torch.tensor([0.4, 0.5, 0.6]), "std": torch.tensor([0.2, 0.3, 0.4]),
         "num_bins": 8, "top": 2, "min_val": 0.0, "max_val": 1.0, "weight": torch.ones(3, 3), "block_size": 3}


def arguments(function, image):
    parameters = list(inspect.signature(function).parameters.values())
    given = {}
    for parameter in parameters[1:]:
        if parameter.default is inspect.Parameter.empty and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            if parameter.name == "kernel":
                given["kernel"] = torch.ones(3, 3) if "morphology" in function.__module__ else torch.rand(1, 3, 3)
            elif parameter.name in GIVEN:
                given[parameter.name] = GIVEN[parameter.name]
            else:
                given[parameter.name] = image.flip(0).detach() * 0.7 + 0.1
    return given


FUNCTIONS = {f"{module.__name__.split('.')[-1]}.{name}": function for module in (kornia.filters, kornia.enhance, kornia.color, kornia.morphology) for name, function in functions(module)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    through(lambda image: FUNCTIONS[name](image, **arguments(FUNCTIONS[name], image)))


LOSSES = dict(functions(kornia.losses))


@pytest.mark.parametrize("kind", ["image", "classes", "binary"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss(name, kind):
    wanted = inspect.signature(LOSSES[name]).parameters
    given = {k: v for k, v in {"window_size": 5, "max_val": 1.0, "alpha": 0.5, "beta": 0.4}.items() if k in wanted and wanted[k].default is inspect.Parameter.empty}

    def call(image):
        target = {"image": torch.rand(ROWS, 3, SIDE, SIDE), "classes": torch.randint(0, 3, (ROWS, SIDE, SIDE)), "binary": torch.randint(0, 2, image.shape).double()}[kind]
        return LOSSES[name](image, target, **given).mean() if "target" in wanted or len(wanted) > 1 else LOSSES[name](image)
    through(call)


MODULES = {name: cls for name, cls in vars(kornia.losses).items() if inspect.isclass(cls) and issubclass(cls, torch.nn.Module)}


@pytest.mark.parametrize("name", MODULES)
def test_loss_module(name):
    wanted = inspect.signature(MODULES[name].__init__).parameters
    given = {k: v for k, v in {"window_size": 5, "max_val": 1.0, "alpha": 0.5, "beta": 0.4}.items() if k in wanted and wanted[k].default is inspect.Parameter.empty}
    loss = MODULES[name](**given)
    through(lambda image: loss(image, torch.randint(0, 3, (ROWS, SIDE, SIDE)) if any(k in name for k in ("Dice", "Focal", "Tversky", "Lovasz")) else torch.rand(ROWS, 3, SIDE, SIDE)).mean())


AUGMENTATIONS = {name: cls for name, cls in vars(kornia.augmentation).items() if inspect.isclass(cls) and issubclass(cls, kornia.augmentation.AugmentationBase2D) and name.startswith("Random")}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation(name):
    cls = AUGMENTATIONS[name]
    given = {"degrees": 20.0, "size": (8, 8), "kernel_size": (3, 3), "sigma": (0.5, 1.0), "angle": 20.0, "direction": 0.3, "mean": 0.0, "std": 0.1}
    wanted = inspect.signature(cls.__init__).parameters
    made = cls(**{k: v for k, v in given.items() if k in wanted and wanted[k].default is inspect.Parameter.empty}, p=0.6)
    through(made)


def rotation():
    return kornia.geometry.get_rotation_matrix2d(torch.full((ROWS, 2), SIDE / 2), torch.linspace(-20, 30, ROWS), torch.ones(ROWS, 2))


GEOMETRY = {
    "rotate": lambda x: kornia.geometry.rotate(x, torch.linspace(-20, 30, ROWS)), "translate": lambda x: kornia.geometry.translate(x, torch.rand(ROWS, 2)),
    "scale": lambda x: kornia.geometry.scale(x, torch.rand(ROWS, 2) + 0.5), "shear": lambda x: kornia.geometry.shear(x, torch.rand(ROWS, 2)), "resize": lambda x: kornia.geometry.resize(x, (9, 11)),
    "rescale": lambda x: kornia.geometry.rescale(x, 0.7), "hflip": kornia.geometry.hflip, "vflip": kornia.geometry.vflip, "rot180": kornia.geometry.rot180, "pyrdown": kornia.geometry.pyrdown,
    "pyrup": kornia.geometry.pyrup, "build_pyramid": lambda x: kornia.geometry.build_pyramid(x, 2)[-1], "warp_affine": lambda x: kornia.geometry.warp_affine(x, rotation(), (12, 12)),
    "center_crop": lambda x: kornia.geometry.center_crop(x, (8, 8)), "spatial_soft_argmax2d": lambda x: kornia.geometry.spatial_soft_argmax2d(x), "conv_soft_argmax2d": lambda x: kornia.geometry.conv_soft_argmax2d(x),
    "elastic": lambda x: kornia.geometry.elastic_transform2d(x, torch.rand(ROWS, 2, SIDE, SIDE), (5, 5), (2.0, 2.0)), "remap": lambda x: kornia.geometry.remap(x, *(torch.rand(ROWS, SIDE, SIDE) * SIDE for _ in range(2))),
    "canny": lambda x: kornia.filters.canny(x)[0], "harris": kornia.feature.harris_response, "gftt": kornia.feature.gftt_response, "hessian": kornia.feature.hessian_response,
    "hardnet": lambda x: kornia.feature.HardNet(False)(torch.nn.functional.interpolate(x[:, :1], (32, 32))), "sift": lambda x: kornia.feature.SIFTDescriptor(SIDE)(x[:, :1]),
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry(name):
    through(GEOMETRY[name])
