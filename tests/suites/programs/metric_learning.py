"""Every loss of pytorch-metric-learning as it is made without arguments, alone and with miners, reducers, distances and regularizers, over two steps."""

import inspect

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers

CLASSES, WIDTH, ROWS = 4, 8, 12
FOUND = {name: cls for name, cls in vars(losses).items() if inspect.isclass(cls) and issubclass(cls, torch.nn.Module)}
GIVEN = {"num_classes": CLASSES, "embedding_size": WIDTH, "memory_size": 24, "miner": None, "loss": None, "num_modes": 2}


def made(cls, **more):
    wanted = inspect.signature(cls.__init__).parameters
    given = {name: value for name, value in GIVEN.items() if name in wanted and wanted[name].default is inspect.Parameter.empty}
    if "loss" in given:
        given["loss"] = losses.TripletMarginLoss()
    return cls(**given, **more)


def train(loss_function, miner=None, miner_apart=False):
    net = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, WIDTH))
    optimizer = torch.optim.Adam([*net.parameters(), *loss_function.parameters()], lr=1e-3)
    for _ in range(2):
        x, labels = torch.randn(ROWS, 10), torch.arange(ROWS) % CLASSES
        embeddings = net(x)
        if miner is None:
            loss = loss_function(embeddings, labels)
        else:
            loss = loss_function(embeddings, labels, miner(embeddings, labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("name", FOUND)
def test_loss(name):
    train(made(FOUND[name]))


MINERS = {name: cls for name, cls in vars(miners).items() if inspect.isclass(cls)}


@pytest.mark.parametrize("name", MINERS)
@pytest.mark.parametrize("loss", ["TripletMarginLoss", "ContrastiveLoss", "MultiSimilarityLoss", "NTXentLoss", "CircleLoss"])
def test_miner(name, loss):
    train(FOUND[loss](), MINERS[name]())


REDUCERS = {name: cls for name, cls in vars(reducers).items() if inspect.isclass(cls)}


@pytest.mark.parametrize("name", REDUCERS)
@pytest.mark.parametrize("loss", ["TripletMarginLoss", "ContrastiveLoss", "ProxyNCALoss", "ArcFaceLoss", "CosFaceLoss"])
def test_reducer(name, loss):
    given = {"ThresholdReducer": {"low": 0.05}, "ClassWeightedReducer": {"weights": torch.rand(CLASSES)}}.get(name, {})
    train(made(FOUND[loss], reducer=REDUCERS[name](**given)))


DISTANCES = {name: cls for name, cls in vars(distances).items() if inspect.isclass(cls)}


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("loss", ["TripletMarginLoss", "NTXentLoss", "MarginLoss", "FastAPLoss", "LiftedStructureLoss", "GeneralizedLiftedStructureLoss"])
def test_distance(name, loss):
    train(made(FOUND[loss], distance=DISTANCES[name]()))


REGULARIZERS = {name: cls for name, cls in vars(regularizers).items() if inspect.isclass(cls)}


@pytest.mark.parametrize("name", REGULARIZERS)
def test_regularizer(name):
    train(made(losses.TripletMarginLoss, embedding_regularizer=REGULARIZERS[name]()))


@pytest.mark.parametrize("name", REGULARIZERS)
def test_weight_regularizer(name):
    train(made(losses.ArcFaceLoss, weight_regularizer=REGULARIZERS[name]()))
