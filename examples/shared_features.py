"""Features that depend on two of three parameters: trials that agree in those share them.

python examples/shared_features.py            # or: mpirun -n 2 python examples/shared_features.py

Of 24 trials 3 compute features on each node; the others have them from memory that the workers share.
"""

from sklearn.datasets import load_digits
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import cross_val_score

from mpitune import Float, Ordinal, search
from mpitune.optimize import Chain, Link
from mpitune.strategies import Grid

images, labels = load_digits(return_X_y=True)


def features(trial):  # once for each gamma and number
    kernel = Nystroem(gamma=trial.params["gamma"], n_components=trial.params["number"], random_state=trial.seed)
    return kernel.fit_transform(images / 16)


def model(trial, features):  # for each trial
    scores = cross_val_score(RidgeClassifier(trial.params["penalty"]), features, labels, cv=3)
    return {"accuracy": scores.mean()}


space = {"gamma": Ordinal(0.01, 0.03, 0.1), "penalty": Float(1e-6, 1, log=True), "number": 300}
objective = Chain(Link(features, "gamma", "number"), model, limit_gb=0.5)

if __name__ == "__main__":
    study = search(objective, space, strategy=Grid(points=8), maximize="accuracy")
    print(study.report())
