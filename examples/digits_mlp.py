"""Handwritten digits with a multi-layer perceptron, SGD with momentum, and noisy copies of the images as augmentation."""

import argparse

import torch
import torch.nn as nn
from sklearn.datasets import load_digits


def digits():
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16  # [1797, 64]
    labels = torch.tensor(data.target)
    return (images[:1437], labels[:1437]), (images[1437:], labels[1437:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="PATH", help="write losses, parameters and the last gradients there")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    (images, labels), (test_images, test_labels) = digits()
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(),
        nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    losses = []
    for step in range(1, args.steps + 1):
        pick = torch.randint(len(images), (args.batch,))
        x = images[pick]
        x = x + 0.1 * torch.randn_like(x)
        y = labels[pick]

        optimizer.zero_grad()
        output = model(x)
        loss = criterion(output, y)
        loss.backward()
        optimizer.step()

        losses.append(loss.item())
        if step % 10 == 0 or step == 1:
            correct = (output.argmax(dim=1) == y).sum().item()
            print(f"step {step:3}  loss {loss.item():.4f}  accuracy {correct / len(y):.1%}", flush=True)

    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"test accuracy {accuracy:.1%}")
    if args.save:
        torch.save({
            "losses": losses,
            "parameters": {name: p.detach() for name, p in model.named_parameters()},
            "gradients": {name: p.grad for name, p in model.named_parameters()},
            "buffers": dict(model.named_buffers()),
        }, args.save)


if __name__ == "__main__":
    main()
