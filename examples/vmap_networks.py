"""Forty small networks of PyTorch that train as one, by torch.func.vmap: a twelfth of the processor time.

    python examples/vmap_networks.py

Networks of one shape are alike, so `alike` names the parameters that shapes depend on. The weights of all of them are
in one tensor for each layer. What vmap gets wrong without a word:

- `copy.deepcopy(model).to("meta")` as the model that `functional_call` is given unties tied weights: two layers that
  share a weight train as two. Give a real model, as here, and `tie_weights=True`.
- Dropout with `randomness="different"` draws masks that depend on the place and on the number of networks. Both are
  fixed here, so a search repeats; but a network trained alone draws others.
- The Python attributes of a module are shared: one that counts its calls counts once for all.

An LSTM trains so, too, but has no rule without a gradient: take its loss from `vmap(grad_and_value(loss))`, or evaluate
network by network.
"""

import torch
from sklearn.datasets import load_digits
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from mpitune import Choice, Float, search

STEPS, ROWS, N_TRAIN = 300, 16, 1200


class Networks:
    def setup(self, device):
        torch.set_num_threads(1)  # products this small gain nothing by threads
        images, labels = load_digits(return_X_y=True)
        self.x, self.y = (
            torch.tensor(images / 16, dtype=torch.float32, device=device),
            torch.tensor(labels, device=device),
        )

    def made(self, trial):
        """The network of a trial and the rows of its batches, by its own seed alone."""
        torch.manual_seed(trial.seed)
        units, act = trial.params["units"], trial.params["act"]()
        model = torch.nn.Sequential(torch.nn.Linear(64, units), act, torch.nn.Linear(units, 10)).to(self.x.device)
        return model, torch.randint(N_TRAIN, (STEPS, ROWS))

    def __call__(self, trials):
        models, rows = zip(*map(self.made, trials), strict=True)
        weights, buffers = stack_module_state(models)
        weights = {name: weight.detach() for name, weight in weights.items()}
        rates = torch.tensor([trial.params["lr"] for trial in trials], device=self.x.device)

        def loss(weights, buffers, x, y):
            return cross_entropy(functional_call(models[0], (weights, buffers), (x,), tie_weights=True), y)

        for chosen in torch.stack(rows, 1):  # of each step: the rows of all networks
            gradients = vmap(grad(loss), randomness="different")(weights, buffers, self.x[chosen], self.y[chosen])
            for name, weight in weights.items():
                weight -= rates.view(-1, *[1] * (weight.ndim - 1)) * gradients[name]
        x, y = self.x[N_TRAIN:], self.y[N_TRAIN:]
        losses = vmap(loss, in_dims=(0, 0, None, None))(weights, buffers, x, y)
        return [{"loss": loss} for loss in losses.nan_to_num(float("inf"), float("inf")).tolist()]


def shape(params):
    return params["units"], params["act"].__name__


if __name__ == "__main__":
    space = {"lr": Float(1e-2, 3, log=True), "units": Choice(16, 32), "act": Choice(torch.nn.ReLU, torch.nn.Tanh)}
    study = search(Networks(), space, n_trials=160, together=40, alike=shape, minimize="loss", seed=0)
    print(study.report())
