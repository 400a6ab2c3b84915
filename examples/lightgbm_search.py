"""Gradient boosting with LightGBM (pip install lightgbm) by Hyperband with TPE; a step is five trees.

python examples/lightgbm_search.py
"""

import lightgbm
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from mpitune import Float, Int, search
from mpitune.strategies import Hyperband


def objective(trial):
    x, x_val, y, y_val = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)
    data = lightgbm.Dataset(x, y, free_raw_data=False)
    params = {"objective": "binary", "verbose": -1, "num_threads": 1, "seed": trial.seed % 2**31, **trial.params}
    model = trial.folder / "model.txt"
    booster, steps = (lightgbm.Booster(model_file=model), trial.start) if trial.start and model.exists() else (None, 0)
    for step in range(steps + 1, 10):
        booster = lightgbm.train(params, data, num_boost_round=5, init_model=booster)
        booster.save_model(model)
        yield {"step": step, "loss": log_loss(y_val, booster.predict(x_val))}


if __name__ == "__main__":
    space = {
        "learning_rate": Float(0.01, 0.5, log=True),
        "num_leaves": Int(4, 64, log=True),
        "lambda_l2": Float(1e-3, 10, log=True),
    }
    strategy = Hyperband(max_steps=9, sampler="tpe")
    study = search(objective, space, strategy=strategy, n_trials=17, window=4, minimize="loss")
    print(study.report())
