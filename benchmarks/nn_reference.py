"""The reference way to train: a DataLoader over PIL images with torchvision's transforms, autograd, torch.optim.SGD.

One network at a time. This is what this project's training is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from mnist_nn.shapes import Params, shapes_of


class Images(Dataset[tuple[Tensor, int]]):
    """What torchvision's MNIST does: a PIL image made from the stored array, then the transforms."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (73.61 / 255,))])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[index].numpy())), int(self.labels[index])

    def __len__(self) -> int:
        return len(self.labels)


class Reference:
    """A network with its loss and optimizer; params as in `mnist_nn.training.train`."""

    def __init__(
        self, params: Params, image_shape: tuple[int, int], batch_size: int, device: torch.device | str = "cpu"
    ) -> None:
        shapes = shapes_of(params, image_shape, 10)
        channels, _, kernel, _ = shapes["conv.weight"]
        units, features = shapes["hidden.weight"]
        self.network = nn.Sequential(
            nn.Conv2d(1, channels, kernel),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(features, units),
            nn.ReLU(),
            nn.Linear(units, 10),
        ).to(device)
        self.device = device
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=float(params["learning_rate"]), momentum=float(params["momentum"])
        )
        self.batch_size = batch_size

    def epoch(self, images: Tensor, labels: Tensor) -> Iterator[None]:
        """One step each time it is advanced, until every image was learned from once."""
        total = 0.0
        for x, y in DataLoader(Images(images, labels), batch_size=self.batch_size, shuffle=True):
            self.optimizer.zero_grad()
            loss = self.criterion(self.network(x.to(self.device)), y.to(self.device))
            loss.backward()
            self.optimizer.step()
            total += loss.item()
            if not math.isfinite(total):
                return
            yield

    @torch.no_grad()
    def loss(self, images: Tensor, labels: Tensor) -> float:
        """Mean cross-entropy per image."""
        total = 0.0
        for x, y in DataLoader(Images(images, labels), batch_size=self.batch_size):
            total += self.criterion(self.network(x.to(self.device)), y.to(self.device)).item() * len(y)
        return total / len(labels)
