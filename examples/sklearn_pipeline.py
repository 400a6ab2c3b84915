"""A scikit-learn pipeline: which scaler, which classifier, and the parameters that each of them has.

python examples/sklearn_pipeline.py            # or: mpirun -n 2 python examples/sklearn_pipeline.py
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC

from mpitune import Choice, Float, Int, When, search


class Pipeline:
    def setup(self, device):  # once in each worker
        self.images, self.labels = load_digits(return_X_y=True)

    def __call__(self, trial):
        params = trial.params
        if params["model"] == "svm":
            model = SVC(C=params["C"], gamma=params["gamma"])
        else:
            model = KNeighborsClassifier(params["neighbors"], weights=params["weights"])
        scores = cross_val_score(make_pipeline(params["scaler"](), model), self.images, self.labels, cv=3)
        return {"accuracy": scores.mean(), "deviation": scores.std()}


space = {
    "scaler": Choice(StandardScaler, MinMaxScaler),
    "model": Choice("svm", "knn"),
    "C": When(Float(0.1, 100, log=True), model="svm"),
    "gamma": When(Float(1e-4, 1, log=True), model="svm"),
    "neighbors": When(Int(1, 15), model="knn"),
    "weights": When(Choice("uniform", "distance"), model="knn"),
}

if __name__ == "__main__":
    study = search(Pipeline, space, strategy="tpe", n_trials=20, window=4, maximize="accuracy")
    print(study.report())
