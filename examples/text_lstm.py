"""An LSTM that reads 64 characters of Python source and says which standard module they were cut from."""

import argparse
import importlib
import inspect

import torch
from torch import nn

MODULES = ["argparse", "tarfile", "typing", "difflib", "_pydecimal", "ipaddress", "subprocess", "optparse"]


class Reader(nn.Module):
    def __init__(self, characters=128, width=48, hidden=128):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.output = nn.Linear(hidden, len(MODULES))

    def forward(self, text):
        states, _ = self.lstm(self.embedding(text))
        return self.output(states.amax(dim=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="PATH", help="write losses, parameters and the last gradients there")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    sources = []
    for name in MODULES:
        text = inspect.getsource(importlib.import_module(name))
        sources.append(torch.tensor([min(ord(character), 127) for character in text]))

    def batch(rows):
        labels = torch.randint(len(MODULES), (rows,))
        texts = []
        for label in labels:
            source = sources[label]
            start = torch.randint(len(source) - args.length, ()).item()
            texts.append(source[start:start + args.length])
        return torch.stack(texts), labels

    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.CrossEntropyLoss()

    losses = []
    for step in range(1, args.steps + 1):
        texts, labels = batch(args.batch)
        optimizer.zero_grad()
        scores = model(texts)
        loss = criterion(scores, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 5 == 0 or step == 1:
            correct = (scores.argmax(1) == labels).sum()
            print(f"step {step:3}  loss {loss:.4f}  accuracy {correct / len(labels):.1%}", flush=True)

    model.eval()
    correct = total = 0
    with torch.no_grad():
        for _ in range(8):
            texts, labels = batch(64)
            correct += (model(texts).argmax(1) == labels).sum().item()
            total += len(labels)
    print(f"accuracy on new cuts {correct / total:.1%}")
    if args.save:
        torch.save({
            "losses": losses,
            "parameters": {name: p.detach() for name, p in model.named_parameters()},
            "gradients": {name: p.grad for name, p in model.named_parameters()},
            "buffers": dict(model.named_buffers()),
        }, args.save)


if __name__ == "__main__":
    main()
