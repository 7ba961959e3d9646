"""What misleads a guess at which tensor is the batch: parameters that meet something else of the program's first."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from models import LanguageModel, Tokens, Vectors
from task import family


@family
class PositionsFirst(LanguageModel):
    """A buffer of positions goes through the first parameter."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("positions", torch.arange(20))
            self.position, self.token = nn.Embedding(20, 16), nn.Embedding(40, 16)
            self.hidden, self.out = nn.Linear(16, 24), nn.Linear(24, 40)

        def forward(self, x):
            places = self.position(self.positions)
            return self.out(torch.tanh(self.hidden(self.token(x) + places)))

    def model(self):
        return self.Net()


@family
class TableFirst(Vectors):
    """Every row looks up in a fixed table, which the model projects anew in each step."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(50, 12))
            self.key, self.value, self.query, self.out = nn.Linear(12, 16), nn.Linear(12, 16), nn.Linear(24, 16), nn.Linear(16, 10)

        def forward(self, x):
            keys, values = self.key(self.table), torch.tanh(self.value(self.table))
            return self.out(torch.softmax(self.query(x) @ keys.t(), dim=1) @ values)

    def model(self):
        return self.Net()


@family
class TimeFirst(Tokens):
    """Sequences first, and an LSTM whose last state is all that is read."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm, self.out = nn.Embedding(40, 12), nn.LSTM(12, 16), nn.Linear(16, 10)

        def forward(self, x):
            return self.out(self.lstm(self.embed(x.t().contiguous()))[0][-1])

    def model(self):
        return self.Net()


@family
class SmallBatchBesideLarge(Vectors):
    """A few prototypes of the program's, encoded by the network that encodes the batch."""

    symmetric = False

    def model(self):
        return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 16))

    def data(self, rows):
        return torch.randn(10, self.width), *super().data(rows)

    def loss(self, model, prototypes, x, y):
        return F.cross_entropy(model(x) @ model(prototypes).t(), y)
