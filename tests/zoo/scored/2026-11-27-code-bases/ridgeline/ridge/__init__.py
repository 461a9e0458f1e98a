from . import datasets, hooks, models  # noqa: F401  (fills the registries)
