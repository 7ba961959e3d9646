"""Handwritten digits with a convolutional network and Adam."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Linear(64 * 2 * 2, 64), nn.ReLU(inplace=True), nn.Linear(64, 10))

        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x):
        x = self.features(x)
        x = x.view(x.size(0), -1)
        return self.classifier(x)


def digits():
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16  # [1797, 1, 8, 8]
    labels = torch.tensor(data.target)
    return (images[:1437], labels[:1437]), (images[1437:], labels[1437:])


@torch.no_grad()
def evaluate(model, images, labels):
    model.eval()
    correct = 0
    for x, y in zip(images.split(60), labels.split(60)):
        correct += (model(x).argmax(1) == y).sum().item()
    model.train()
    return correct / len(labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="PATH", help="write losses, parameters and the last gradients there")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    (images, labels), test = digits()
    model = Cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    losses = []
    for step in range(1, args.steps + 1):
        pick = torch.randperm(len(images))[:args.batch]
        x, y = images[pick], labels[pick]

        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        losses.append(loss.item())
        if step % 5 == 0 or step == 1:
            accuracy = (logits.argmax(1) == y).float().mean().item()
            print(f"step {step:3}  loss {loss.item():.4f}  accuracy {accuracy:.1%}", flush=True)

    print(f"test accuracy {evaluate(model, *test):.1%}")
    if args.save:
        torch.save({
            "losses": losses,
            "parameters": {name: p.detach() for name, p in model.named_parameters()},
            "gradients": {name: p.grad for name, p in model.named_parameters()},
            "buffers": dict(model.named_buffers()),
        }, args.save)


if __name__ == "__main__":
    main()
