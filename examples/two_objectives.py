"""Two objectives: a small error and a small model; the answer is the Pareto front.

python examples/two_objectives.py
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.tree import DecisionTreeClassifier

from mpitune import Float, Int, search


def objective(trial):
    images, labels = load_digits(return_X_y=True)
    tree = DecisionTreeClassifier(
        max_leaf_nodes=trial.params["leaves"], ccp_alpha=trial.params["alpha"], random_state=0
    )
    error = 1 - cross_val_score(tree, images, labels, cv=3).mean()
    return {"error": error, "leaves": float(tree.fit(images, labels).get_n_leaves())}


if __name__ == "__main__":
    space = {"leaves": Int(2, 300, log=True), "alpha": Float(1e-5, 1e-2, log=True)}
    study = search(objective, space, strategy="nsga2", n_trials=24, window=8, minimize=["error", "leaves"])
    print(study.report())
