"""A PyTorch network that saves checkpoints, and whose training goes on only while it is among the best.

python examples/pytorch_pruning.py [RESULTS]   # with a folder the same command continues
"""

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from mpitune import Float, Int, search
from mpitune.strategies import ASHA


class Network:
    def setup(self, device):
        images, labels = load_digits(return_X_y=True)
        parts = train_test_split(images / 16, labels, test_size=0.3, random_state=0)
        self.device = device
        self.x, self.x_val = (torch.tensor(part, dtype=torch.float32, device=device) for part in parts[:2])
        self.y, self.y_val = (torch.tensor(part, device=device) for part in parts[2:])

    def __call__(self, trial):
        params = trial.params
        torch.manual_seed(trial.seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, params["units"]), torch.nn.ReLU(), torch.nn.Dropout(params["dropout"]),
            torch.nn.Linear(params["units"], 10),
        ).to(self.device)  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=params["lr"])
        checkpoint, epochs = trial.folder / "checkpoint.pt", 0
        if checkpoint.exists():  # of an earlier stage, or of an attempt that was killed
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            epochs = saved["epochs"]
        for epoch in range(epochs + 1, 28):
            model.train()
            torch.manual_seed(trial.seed + epoch)  # what is random in an epoch does not depend on where it began
            for rows in torch.randperm(len(self.x)).split(64):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(self.x[rows]), self.y[rows]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                loss = torch.nn.functional.cross_entropy(model(self.x_val), self.y_val).item()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch}
            torch.save(state, checkpoint)
            yield {"step": epoch, "loss": loss}


if __name__ == "__main__":
    space = {"lr": Float(1e-4, 1e-1, log=True), "units": Int(8, 128, log=True), "dropout": Float(0, 0.5)}
    results = sys.argv[1] if len(sys.argv) > 1 else None
    study = search(
        Network(), space, strategy=ASHA(max_steps=27), n_trials=18, window=4, minimize="loss", results=results
    )
    print(study.report())
