"""A model of one layer."""


class Model:
    def __init__(self, width: int) -> None:
        self.weights = [0.0] * width

    def update(self, step: int) -> None:
        self.weights = [weight + 1.0 / (step + 1) for weight in self.weights]


def build_model(width: int) -> Model:
    return Model(width)
