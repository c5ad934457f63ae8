"""A model of the module, fitted at import."""

import numpy
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

POINTS = numpy.array([[0.0, 0.0], [1.0, 1.0], [0.1, 0.2], [0.9, 0.8]] * 5)
KINDS = numpy.array([0, 1, 0, 1] * 5)
MODEL = LogisticRegression().fit(POINTS, KINDS)


def work():
    forest = RandomForestClassifier(n_estimators=5, random_state=7, n_jobs=2).fit(POINTS, KINDS)
    return [
        MODEL.predict([[0.9, 0.9]]).tolist(),
        round(float(MODEL.predict_proba([[1, 1]])[0][1]), 3),
        forest.predict(POINTS).tolist(),
    ]


def fail():
    LogisticRegression().predict([[1, 1]])
