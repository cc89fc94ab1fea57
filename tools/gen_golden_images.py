#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/cnn.f32 and resnet18.f32: ten steps of PyTorch on small variants of the models.

Initial weights and batches come from an integer hash that tests/golden/images_test.cc computes too.
A file holds fp32 values: the losses before each update; the first step's gradients, the parameters
after the last update, and the running means and variances then, each in the order of the model; the
loss of the first batch in evaluation mode then. Needs torch and numpy.
"""

import math
import pathlib

import numpy as np
import torch
from torch import nn

from gen_golden_mlp import uniform

STEPS, BATCH, CLASSES = 10, 8, 10
LR, MOMENTUM, WEIGHT_DECAY = 0.02, 0.9, 5e-4


def signed(site, shape):
    values = uniform(site, math.prod(shape)) * np.float32(2) - np.float32(1)
    return torch.from_numpy(values.reshape(shape))


class Cnn(nn.Module):
    """channels [5, 9], a hidden layer of 17, batch norm."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(5)
        self.conv2 = nn.Conv2d(5, 9, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(9)
        self.fc1 = nn.Linear(9 * 3 * 3, 17)
        self.fc2 = nn.Linear(17, CLASSES)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 2)
        x = nn.functional.max_pool2d(self.bn2(self.conv2(x)).relu(), 2)
        return self.fc2(self.fc1(x.flatten(1)).relu())


class Block(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class Resnet18(nn.Module):
    """The ImageNet stem, `width` channels in the first stage."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage in range(4):
            out = width << stage
            blocks = [Block(inputs, out, 1 if stage == 0 else 2), Block(out, out, 1)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            inputs = out
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for stage in range(4):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def set_weights(model):
    for site, parameter in enumerate(model.parameters(), start=1):
        shape = tuple(parameter.shape)
        u = signed(site, shape)
        if len(shape) > 1:
            bound = np.float32(math.sqrt(3.0 / (math.prod(shape) // shape[0])))
            parameter.data = u * float(bound)
        else:
            parameter.data = u * 0.125 + 0.5
    return model


def batch(step, shape):
    labels = (uniform(1000 + step, BATCH) * np.float32(CLASSES)).astype(np.int64)
    inputs = signed(2000 + step, (BATCH, *shape))
    return inputs, torch.from_numpy(labels)


def record(model, shape):
    set_weights(model)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    losses, gradients = [], []
    for step in range(STEPS):
        inputs, labels = batch(step, shape)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            gradients = [p.grad.flatten() for p in model.parameters()]
        gradients = [g.clone() for g in gradients]
        optimizer.step()
        losses.append(loss.detach())
    running = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            running += [module.running_mean, module.running_var]
    model.eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(batch(0, shape)[0]), batch(0, shape)[1])
    parts = [torch.stack(losses), *gradients, *(p.data.flatten() for p in model.parameters()),
             *running, loss.reshape(1)]
    return torch.cat(parts).numpy().astype("<f4")


def main():
    torch.set_num_threads(1)
    folder = pathlib.Path(__file__).parent.parent / "tests" / "golden"
    record(Cnn(), (1, 12, 13)).tofile(folder / "cnn.f32")
    record(Resnet18(3), (3, 65, 61)).tofile(folder / "resnet18.f32")


if __name__ == "__main__":
    main()
